"""Speed of RRS's kernels against what they replace."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ritornello.common.kernels.hadamard import hadamard_matrix, hadamard_transform
from ritornello.common.kernels.quantize import smooth_quantize, sorted_channel_scale
from ritornello.experiments.benchmarks import Benchmark
from ritornello.methods.rrs import pack_int4, rrs_linear
from ritornello.methods.rrs.quantizers import round_symmetric
from ritornello.methods.rrs.smoothing import grouped_scale


def benchmarks() -> Iterator[Benchmark]:
    """Hadamard transform, quantiser, and the whole layer on integers."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    for tokens in (256, 2048):
        x = torch.randn(1, tokens, 1536, generator=generator).to(device)
        matrix = hadamard_matrix(1536).to(device)
        inner = max(1, 2048 // tokens)
        yield Benchmark(
            f"Hadamard transform, n=1536, {tokens} tokens",
            ours=lambda x=x: hadamard_transform(x),
            peer=lambda x=x, matrix=matrix: x @ matrix,
            peer_name="x @ H",
            target=7.0,
            agree=lambda a, b: torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3),
            inner=inner,
        )
        yield Benchmark(
            f"smooth, scale, round; n=1536, {tokens} tokens",
            ours=lambda x=x: _fused(x),
            peer=lambda x=x: _pass_by_pass(x),
            peer_name="pass by pass",
            target=3.0,
            agree=_same_values,
            inner=inner,
        )
    sizes, lengths = [(576, 1536), (1536, 576)], [16, 256, 2048]
    if device == "cuda":
        sizes, lengths = [(4096, 4096), (4096, 14336), (14336, 4096)], [1, 16, 256, 2048]
    for channels, outputs in sizes:
        for tokens in lengths:
            yield _layer(tokens, channels, outputs, device, generator)
    yield _overhead(2048, *sizes[0], device, generator)


def _layer(
    tokens: int, channels: int, outputs: int, device: str, generator: torch.Generator
) -> Benchmark:
    """The layer on integers against the float product that a simulation needs."""
    x, q, stored, scale = _operands(tokens, channels, outputs, device, generator)
    weight = q.float() * scale[:, None]
    return Benchmark(
        f"RRS layer, {tokens} tokens, {channels} -> {outputs}",
        ours=lambda: rrs_linear(x, stored, scale),
        peer=lambda: _simulated(x, weight),
        peer_name="simulation",
        agree=_same_tokens,
    )


def _overhead(
    tokens: int, channels: int, outputs: int, device: str, generator: torch.Generator
) -> Benchmark:
    """What scales found at run time cost: the same integer product with and without them."""
    x, _, stored, scale = _operands(tokens, channels, outputs, device, generator)
    return Benchmark(
        f"RRS layer with and without smoothing, {tokens} tokens, {channels} -> {outputs}",
        ours=lambda: rrs_linear(x, stored, scale),
        peer=lambda: rrs_linear(x, stored, scale, stat=None),
        peer_name="the same without smoothing",
        target=1 / 1.15 if device == "cuda" else None,  # what the kernels of a GPU aim at
    )


def _operands(
    tokens: int, channels: int, outputs: int, device: str, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(activations, integers, integers as a layer keeps them, scale of each output)."""
    x = torch.randn(1, tokens, channels, generator=generator).to(device)
    q = torch.randint(-8, 8, (outputs, channels), generator=generator).to(torch.int8).to(device)
    scale = torch.rand(outputs, generator=generator).to(device)
    # By channel on the CPU, packed on a GPU.
    stored = q.t().contiguous().t() if device == "cpu" else pack_int4(q)
    return x, q, stored, scale


def _fused(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    order, scale = sorted_channel_scale(x, 128, smallest=1e-5)
    q, step = smooth_quantize(x, order, scale, group_size=128)
    return q, step, order


def _pass_by_pass(x: Tensor) -> Tensor:
    """One operation after another over the whole tensor, as the simulation is usually written."""
    scale = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-5)
    order = torch.argsort(scale, dim=-1, descending=True)
    blocks = scale.gather(-1, order).unflatten(-1, (-1, 128))
    blocks = blocks.amax(-1, keepdim=True).expand_as(blocks).flatten(-2)
    scale = blocks.gather(-1, torch.argsort(order, dim=-1))
    smoothed = x / scale
    step = smoothed.abs().amax(dim=-1, keepdim=True) / 7
    step = torch.where(step == 0, torch.ones_like(step), step)
    return torch.clamp(torch.round(smoothed / step), -8, 7).to(torch.int8)


def _same_tokens(ours: Tensor, peer: Tensor) -> None:
    # A tie that falls to the other side moves a whole token: one in 1,000 may.
    far = (ours - peer).abs() > 0.1 + 1e-3 * peer.abs()
    assert far.any(-1).float().mean() <= 1e-3, f"{int(far.any(-1).sum())} tokens differ"


def _same_values(ours: tuple[Tensor, Tensor, Tensor], peer: Tensor) -> None:
    q, _, order = ours
    expected = peer.gather(2, order[:, None].expand_as(peer))
    # Ties that differ in the last bit may fall to either side.
    assert (q.int() - expected.int()).abs().float().mean() < 1e-4


def _simulated(x: Tensor, weight: Tensor) -> Tensor:
    scale = grouped_scale(x, 128, "absmax").per_channel(128)
    levels, step = round_symmetric(x / scale, 4)
    return (levels * step * scale) @ weight.T
