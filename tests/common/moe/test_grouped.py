"""The grouped matmul against a loop, for the layouts the operator itself refuses."""

import pytest
import torch

from ritornello.common.moe.grouped import grouped_matmul, grouped_outer, grouped_rows

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize(("inner", "outer"), [(8, 16), (3, 5), (8, 1), (7, 8)])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("counts", [[4, 0, 3], [0, 0, 1], [5, 1, 0]])
def test_grouped_matmul_equals_the_loop(inner, outer, dtype, counts):
    """Values and both gradients, with an expanded gradient."""
    torch.manual_seed(0)
    x = torch.randn(sum(counts), inner, dtype=dtype, requires_grad=True)
    weight = torch.randn(3, inner, outer, dtype=dtype, requires_grad=True)
    offsets = torch.tensor(counts).cumsum(0).to(torch.int32)
    fast = grouped_matmul(x, weight, offsets)
    slow = torch.cat([a @ b for a, b in zip(x.split(counts), weight, strict=True)])
    grads = [torch.autograd.grad(y.sum(), [x, weight]) for y in (fast, slow)]
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(fast, slow, **tolerance)
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


def test_autocast_computes_in_half_precision():
    x, weight = torch.randn(3, 8), torch.randn(1, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert grouped_matmul(x, weight, torch.tensor([3], dtype=torch.int32)).dtype == (
            torch.bfloat16
        )


def test_operators_pass_torchs_own_checks():
    """Schema, fake kernel, autograd registration, ahead-of-time dispatch."""
    x, y = torch.randn(7, 8, requires_grad=True), torch.randn(7, 4)
    weight = torch.randn(3, 8, 4, requires_grad=True)
    offsets = torch.tensor([2, 2, 7], dtype=torch.int32)
    torch.library.opcheck(grouped_rows, (x, weight, offsets))
    torch.library.opcheck(grouped_outer, (x.detach(), y, offsets))
