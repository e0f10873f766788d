"""ARM: the selective scan against the peers' on this device, and the steps of pretraining."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from ritornello.common.kernels.selective_scan import causal_conv1d, selective_scan
from ritornello.experiments.benchmarks import Benchmark
from ritornello.methods.arm import (
    ARMForImageClassification,
    ARMForPretraining,
    MAEForPretraining,
    patch_transformers_mamba,
)

SIZES = [(8, 64, 64, 16), (4, 192, 128, 16), (4, 384, 197, 16)]  # batch, channels, length, states


def _inputs(batch: int, channels: int, length: int, states: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator)

    values = [
        normal(batch, channels, length),
        normal(batch, channels, length) - 2,
        -torch.arange(1.0, states + 1).repeat(channels, 1),
        normal(batch, states, length),
        normal(batch, states, length),
        normal(channels),
        normal(batch, channels, length),
    ]
    return [value.requires_grad_() for value in values]


def _trained(scan: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], list[Tensor]]:
    def call() -> list[Tensor]:
        y = scan(*inputs, delta_softplus=True)
        return [y.detach(), *torch.autograd.grad(y.sum(), inputs)]

    return call


def _agree(ours: list[Tensor], peers: list[Tensor]) -> None:
    for got, expected in zip(ours, peers, strict=True):
        scale = expected.abs().max().clamp(min=1)
        torch.testing.assert_close(got / scale, expected / scale, rtol=1e-3, atol=1e-4)


def _mambapy_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor,
    delta_softplus: bool,
) -> Tensor:
    """The selective scan on mambapy's parallel scan, as its Mamba block calls it."""
    from mambapy.pscan import pscan

    step = (F.softplus(delta) if delta_softplus else delta).mT
    decay = torch.exp(step[..., None] * A)
    states = pscan(decay, (step * u.mT)[..., None] * B.mT[:, :, None])
    y = (states @ C.mT[..., None])[..., 0].mT + D[:, None] * u
    return y * F.silu(z)


def _scans() -> Iterator[Benchmark]:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    peers = {"transformers' fallback": (mamba_selective_scan, 20.0)}
    try:
        import mambapy  # noqa: F401
    except ModuleNotFoundError:
        pass
    else:
        peers["mambapy"] = (_mambapy_scan, 4.0)
    for size in SIZES:
        inputs = _inputs(*size)
        for name, (peer, target) in peers.items():
            yield Benchmark(
                f"selective scan {size}, forward and backward",
                ours=_trained(selective_scan, inputs),
                peer=_trained(peer, inputs),
                peer_name=name,
                target=target if size == SIZES[-1] else None,
                agree=_agree,
            )


def _long() -> Iterator[Benchmark]:
    """Eight times the length in eight times the time: the ratio is 8 when time is linear."""
    short, long = _inputs(1, 64, 256, 16), _inputs(1, 64, 2048, 16)
    yield Benchmark(
        "selective scan, L = 256, forward and backward",
        ours=_trained(selective_scan, short),
        peer=_trained(selective_scan, long),
        peer_name="L = 2048 (linear: 8)",
    )


def _convolution() -> Iterator[Benchmark]:
    x = _inputs(4, 384, 197, 16)[0]
    weight = torch.randn(384, 4).requires_grad_()

    def torch_convolution(x: Tensor, weight: Tensor) -> Tensor:
        return F.silu(F.conv1d(F.pad(x, (3, 0)), weight[:, None], groups=len(weight)))

    def trained(convolve: Callable[..., Tensor]) -> Callable[[], list[Tensor]]:
        def call() -> list[Tensor]:
            y = convolve(x, weight)
            return [y.detach(), *torch.autograd.grad(y.sum(), (x, weight))]

        return call

    yield Benchmark(
        "causal convolution and silu (4, 384, 197)",
        ours=trained(lambda x, w: causal_conv1d(x, w, activation="silu")),
        peer=trained(torch_convolution),
        peer_name="F.conv1d, F.silu",
        agree=_agree,
    )


def _steps() -> Iterator[Benchmark]:
    sizes = {"image_size": 192, "depth": 12, "dim": 192}
    images = torch.randn(2, 3, 192, 192)
    arm = ARMForPretraining(**sizes, decoder_dim=128)
    supervised = ARMForImageClassification(**sizes)
    masked = MAEForPretraining(**sizes, decoder_dim=128)
    peers = {
        "supervised, four directions": lambda: supervised(images).square().mean().backward(),
        "masked autoencoding": lambda: masked(images).loss.backward(),
    }
    for name, peer in peers.items():
        yield Benchmark(
            "ARM's pretraining step, 192 px",
            ours=lambda: arm(images).loss.backward(),
            peer=peer,
            peer_name=name,
            target=2.0 if name.startswith("supervised") else 1.0,
        )


def _language_model() -> Iterator[Benchmark]:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=256, hidden_size=128, num_hidden_layers=2)
    model = MambaForCausalLM(config)
    tokens = torch.randint(256, (2, 197))

    def patched() -> None:
        with patch_transformers_mamba():
            model(tokens, labels=tokens).loss.backward()

    yield Benchmark(
        "Hugging Face Mamba, a training step of 2 x 197 tokens",
        ours=patched,
        peer=lambda: model(tokens, labels=tokens).loss.backward(),
        peer_name="transformers' fallback",
    )


def benchmarks() -> Iterator[Benchmark]:
    """Scans, convolution, steps of the strategies, and a patched language model."""
    for group in (_scans, _long, _convolution, _steps, _language_model):
        yield from group()
