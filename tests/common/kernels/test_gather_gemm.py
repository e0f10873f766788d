"""Products through an index list: every backend against the reference, gradients, bad input."""

import os
import subprocess
import sys

import pytest
import torch

from ritornello.common.kernels.gather_gemm import gather_combine, gather_linear, reference

SHAPES = [(1, 1, 1, 1), (3, 8, 5, 4), (33, 65, 40, 63), (5, 7, 16, 0)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}


def operands(rows, width, out_rows, chosen, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows + width)
    x = torch.randn(rows, width, generator=generator).to(dtype)
    weight = torch.randn(max(out_rows, chosen), width, generator=generator).to(dtype)
    index = torch.randperm(len(weight), generator=generator)[:chosen].sort().values
    inner = torch.randn(rows, chosen, generator=generator).to(dtype)
    return x, inner, weight, index


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_row_copy_agrees_with_the_loop(shape, dtype):
    x, inner, weight, index = operands(*shape, dtype)
    close = {"rtol": TOLERANCE[dtype], "atol": 4 * TOLERANCE[dtype]}
    for name, left in (("linear", x), ("combine", inner)):
        public = gather_linear if name == "linear" else gather_combine
        expected = getattr(reference, name)(left, weight, index)
        torch.testing.assert_close(public(left, weight, index, backend="cpu"), expected, **close)


def test_leading_dimensions_are_kept_and_rows_may_repeat():
    x = torch.arange(12.0).view(2, 2, 3)
    weight = torch.eye(3)
    index = torch.tensor([2, 0, 2])
    assert torch.equal(gather_linear(x, weight, index), x[..., [2, 0, 2]])
    # Row 2 of the identity receives the first and the last column, row 0 the middle one.
    expected = torch.stack([x[..., 1], torch.zeros(2, 2), x[..., 0] + x[..., 2]], dim=-1)
    assert torch.equal(gather_combine(x, weight, index), expected)


@pytest.mark.parametrize("operator", [gather_linear, gather_combine])
def test_gradients_are_those_of_the_plain_product(operator):
    x, inner, weight, index = operands(4, 6, 9, 5, torch.float64)
    left = (x if operator is gather_linear else inner).requires_grad_()
    weight.requires_grad_()
    plain = left @ (weight[index].T if operator is gather_linear else weight[index])
    ours = operator(left, weight, index)
    seed = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=ours.dtype)
    expected = torch.autograd.grad(plain, (left, weight), seed)
    torch.testing.assert_close(torch.autograd.grad(ours, (left, weight), seed), expected)


def test_operators_pass_opcheck():
    x, inner, weight, index = operands(4, 6, 9, 5)
    for operator, left in (("gather_linear", x), ("gather_combine", inner)):
        op = getattr(torch.ops.ritornello, operator).default
        torch.library.opcheck(op, (left.requires_grad_(), weight.requires_grad_(), index, "cpu"))


def test_bad_input_is_named():
    x, _, weight, index = operands(4, 6, 9, 5)
    with pytest.raises(ValueError, match="share a floating dtype"):
        gather_linear(x.double(), weight, index)
    with pytest.raises(ValueError, match="int64"):
        gather_linear(x, weight, index.int())
    with pytest.raises(ValueError, match="shapes do not fit"):
        gather_combine(x, weight, index)
    with pytest.raises(ValueError, match="backend"):
        gather_linear(x, weight, index, backend="blas")


INTERPRETED = """
import torch
from ritornello.common.kernels.gather_gemm import gather_combine, gather_linear
for rows, width, out_rows, chosen in [(1, 1, 1, 1), (3, 8, 5, 4), (70, 65, 40, 33), (5, 7, 16, 0)]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, width, generator=generator, requires_grad=True)
    weight = torch.randn(out_rows, width, generator=generator, requires_grad=True)
    index = torch.randperm(out_rows, generator=generator)[:chosen]
    inner = torch.randn(rows, chosen, generator=generator, requires_grad=True)
    for operator, left in ((gather_linear, x), (gather_combine, inner)):
        values = [operator(left, weight, index, backend=b) for b in ("triton", "reference")]
        torch.testing.assert_close(*values, rtol=1e-5, atol=1e-5)
        seed = torch.randn(values[0].shape, generator=generator)
        grads = [torch.autograd.grad(v, (left, weight), seed) for v in values]
        torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)
"""


def test_triton_kernel_in_the_interpreter_agrees_with_the_reference():
    """In a process of its own: the interpreter must be chosen before Triton is imported."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_triton_kernel_on_the_gpu_agrees_with_the_row_copy():
    for shape in [(200, 300, 130, 70), (1, 512, 640, 320)]:
        x, inner, weight, index = (t.cuda() for t in operands(*shape))
        for operator, left in ((gather_linear, x), (gather_combine, inner)):
            expected = operator(left, weight, index, backend="cpu")
            actual = operator(left, weight, index, backend="triton")
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
