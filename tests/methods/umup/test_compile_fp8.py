"""torch.compile gives the eager numbers; FP8 casts hit the right tensors; autocast works."""

import pytest
import torch

from ritornello.methods.umup import SP, DecoderConfig, DecoderLM, Fp8Cast, UMuP
from ritornello.methods.umup import functional as U
from ritornello.methods.umup.fp8 import (
    E4M3,
    E5M2,
    detach_casts,
    flushed_fraction,
    round_e4m3fn,
    round_e5m2,
)
from ritornello.methods.umup.modules import Linear

CONFIG = DecoderConfig(23, 16, 2, 2)


def model(scheme=None) -> DecoderLM:
    return DecoderLM(CONFIG, scheme, generator=torch.Generator().manual_seed(0))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def gradients(loss: torch.Tensor, of: torch.nn.Module) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(of.parameters())))


def test_whole_graph_compiles_to_the_eager_numbers():
    eager, (ids, targets) = model(), batch()
    compiled = torch.compile(eager.loss, fullgraph=True, backend="aot_eager")
    loss = eager.loss(ids, targets)
    again = compiled(ids, targets)
    torch.testing.assert_close(again, loss)
    for ours, theirs in zip(gradients(again, eager), gradients(loss, eager), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", [UMuP(), SP()], ids=["umup", "sp"])
def test_autocast_and_checkpointing_keep_the_numbers(scheme):
    lm, (ids, targets) = model(scheme), batch()
    loss = lm.loss(ids, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = lm.loss(ids, targets)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, loss, rtol=0.05, atol=0.05)
    assert all(g.dtype == torch.float32 for g in gradients(low, lm))
    plain = lm.layers[0](lm.embedding(ids), 0)
    again = torch.utils.checkpoint.checkpoint(
        lm.layers[0], lm.embedding(ids), 0, use_reentrant=False
    )
    for a, b in zip(
        gradients(plain.sum(), lm.layers[0]), gradients(again.sum(), lm.layers[0]), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("operand", "gradient"), [(round_e4m3fn, round_e5m2), (E4M3.quantize, E5M2.quantize)]
)
def test_cast_rounds_operands_and_output_gradient(operand, gradient):
    layer = Linear(5, 3, generator=torch.Generator().manual_seed(0))
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    upstream = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    Fp8Cast(operand=operand, gradient=gradient).attach(torch.nn.ModuleDict({"up": layer}))
    out = layer(x)
    low_x, low_w, low_g = operand(x), operand(layer.weight), gradient(upstream)
    torch.testing.assert_close(out, U.linear(low_x, low_w))
    grad_x, grad_w = torch.autograd.grad(out, (x, layer.weight), upstream)
    torch.testing.assert_close(grad_x, low_g @ low_w * 5**-0.5)
    torch.testing.assert_close(grad_w, low_g.T @ low_x * 4**-0.5)


def test_fp8_units_give_the_simulated_numbers():
    """torch._scaled_mm, which CPUs run too, against rounding and ordinary products."""
    layer = Linear(32, 16, generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(1), requires_grad=True)
    upstream = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(2))
    found = []
    for cast in (Fp8Cast(), Fp8Cast(hardware=True)):
        cast.attach(torch.nn.ModuleDict({"up": layer}))
        out = layer(x)
        found.append((out, *torch.autograd.grad(out, (x, layer.weight), upstream)))
    for simulated, real in zip(*found, strict=True):
        torch.testing.assert_close(real, simulated)


def test_cast_leaves_the_readout_and_takes_critical_inputs_wide():
    lm, (ids, targets) = model(), batch()
    before = lm.loss(ids, targets)
    names = Fp8Cast().attach(lm)
    assert len(names) == 7 * CONFIG.layers
    assert "readout" not in names
    critical = {n for n, m in lm.named_modules() if getattr(m, "critical", False)}
    assert critical == {
        f"layers.{i}.{part}" for i in range(2) for part in ("attention.output", "feed_forward.down")
    }
    low = lm.loss(ids, targets)
    assert low != before
    torch.testing.assert_close(low, before, rtol=0.1, atol=0.1)
    detach_casts(lm)
    torch.testing.assert_close(lm.loss(ids, targets), before)


def test_flushed_fraction_counts_what_rounding_loses():
    tensors = [torch.tensor([0.0, 1.0, 1e-6, -1e-6]), torch.tensor([2.0])]
    assert flushed_fraction(tensors) == pytest.approx(0.5)
