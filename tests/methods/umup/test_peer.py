"""Numbers equal the published library's, when it is installed."""

import pytest
import torch

from ritornello.methods.umup import AdamW, DecoderConfig, DecoderLM
from ritornello.methods.umup import functional as U
from ritornello.methods.umup.fp8 import FPFormat

uu = pytest.importorskip("unit_scaling", reason="needs the package unit-scaling (extra bench)")
unit_formats = pytest.importorskip("unit_scaling.formats")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


CASES = {
    "linear": (U.linear, lambda f: lambda x, w, b: f.linear(x, w, b), [(3, 5, 7), (4, 7), (4,)]),
    "readout": (
        U.linear_readout,
        lambda f: lambda x, w: f.linear_readout(x, w, None),
        [(3, 5, 7), (4, 7)],
    ),
    "matmul": (U.matmul, lambda f: f.matmul, [(2, 3, 5), (2, 5, 4)]),
    "silu_glu": (U.silu_glu, lambda f: f.silu_glu, [(3, 4), (3, 4)]),
    "gelu": (
        lambda x: U.gelu(x, 0.25, None),
        lambda f: lambda x: f.gelu(x, 0.25, None),
        [(3, 4)],
    ),
    "attention": (
        lambda q, k, v: U.scaled_dot_product_attention(q, k, v, None, 0.0, True, 2.0),
        lambda f: lambda q, k, v: f.scaled_dot_product_attention(q, k, v, None, 0.0, True, 2.0),
        [(2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4)],
    ),
    "softmax": (U.softmax, lambda f: lambda x: f.softmax(x, dim=-1), [(3, 9)]),
    "add": (U.add, lambda f: f.add, [(3, 4), (4,)]),
    "conv1d": (
        lambda x, w: U.conv1d(x, w, stride=2, dilation=2, groups=2),
        lambda f: lambda x, w: f.conv1d(x, w, stride=2, dilation=2, groups=2),
        [(2, 4, 13), (6, 2, 3)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_equal_the_library(name):
    ours, theirs, shapes = CASES[name]
    inputs = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    out, expected = ours(*inputs), theirs(uu.functional)(*inputs)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    upstream = draw(*out.shape, seed=9).detach()
    found = torch.autograd.grad(out, inputs, upstream)
    for our, their in zip(found, torch.autograd.grad(expected, inputs, upstream), strict=True):
        torch.testing.assert_close(our, their, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bits", [(4, 3), (5, 2), (3, 2), (5, 10)])
def test_rounding_equals_the_library(bits):
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    x = x * torch.exp2(torch.arange(2000) % 40 - 20.0)
    expected = unit_formats.FPFormat(*bits, rounding="nearest").quantise(x.clone())
    torch.testing.assert_close(FPFormat(*bits).quantize(x), expected, rtol=0, atol=0)


def test_ten_training_steps_equal_the_library_s():
    torch.manual_seed(0)
    width, heads = 16, 2
    theirs = uu.TransformerDecoder(width, 11, 2, heads, 0.0)
    ours = DecoderLM(DecoderConfig(11, width, 2, heads, rope_theta=None))
    with torch.no_grad():
        ours.embedding.weight.copy_(theirs.embedding.weight)
        ours.readout.weight.copy_(theirs.projection.weight)
        for layer, peer in zip(ours.layers, theirs.layers, strict=True):
            parts = peer.mhsa.linear_qkv.weight.chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                getattr(layer.attention, name).weight.copy_(part)
            layer.attention.output.weight.copy_(peer.mhsa.linear_o.weight)
            layer.feed_forward.up.weight.copy_(peer.mlp.linear_1.weight)
            layer.feed_forward.gate.weight.copy_(peer.mlp.linear_gate.weight)
            layer.feed_forward.down.weight.copy_(peer.mlp.linear_2.weight)
    optimizers = [
        AdamW(ours, 0.5, weight_decay=2**-10),
        uu.optim.AdamW(theirs.parameters(), 0.5, weight_decay=2**-10),
    ]
    for step in range(10):
        ids = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(step))
        losses = [ours.parametrization.loss(ours(ids)[:, :-1], ids[:, 1:]), theirs.loss(ids)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-4)
