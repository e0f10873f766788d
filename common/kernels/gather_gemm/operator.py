"""The operators `ritornello::gather_linear` and `gather_combine`: dispatch, fake, gradients."""

import math
from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ritornello.common.kernels.dispatch import (
    choose_backend,
    refuse_tangents,
    triton_obstacle,
)
from ritornello.common.kernels.gather_gemm import cpu, reference


def gather_linear(
    x: Float[Tensor, "*batch width"],
    weight: Float[Tensor, "rows width"],
    index: Int[Tensor, " chosen"],
    *,
    backend: str | None = None,
) -> Float[Tensor, "*batch chosen"]:
    """`x @ weight[index].T`: a linear layer with the chosen output rows only.

    Args:
        x: floating point, any device.
        weight: same dtype and device as `x`.
        index: int64 row numbers in [0, rows); not checked on the GPU.
        backend: "triton", "cpu" (row copy and one product, any device) or "reference";
            None lets the environment variable RITORNELLO_BACKEND or the device decide.

    Raises:
        ValueError: shapes or dtypes do not fit, or the forced backend cannot run.
        RuntimeError: forward-mode derivatives.
    """
    _check(x, weight, index, x.shape[-1] == weight.shape[-1])
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return _linear(flat, weight, index, backend).view(*x.shape[:-1], len(index))


def gather_combine(
    x: Float[Tensor, "*batch chosen"],
    weight: Float[Tensor, "rows width"],
    index: Int[Tensor, " chosen"],
    *,
    backend: str | None = None,
) -> Float[Tensor, "*batch width"]:
    """`x @ weight[index]`: a linear layer with the chosen inputs only, weight stored transposed.

    Arguments and errors as in `gather_linear`.
    """
    _check(x, weight, index, x.shape[-1] == len(index))
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return _combine(flat, weight, index, backend).view(*x.shape[:-1], weight.shape[1])


def _check(x: Tensor, weight: Tensor, index: Tensor, fits: bool) -> None:
    refuse_tangents("gather_linear and gather_combine", x, weight)
    if not x.is_floating_point() or weight.dtype != x.dtype:
        raise ValueError(f"x and weight must share a floating dtype, got {x.dtype}, {weight.dtype}")
    if index.dtype != torch.int64 or index.ndim != 1:
        raise ValueError(f"index must be 1-D int64, got {index.ndim}-D {index.dtype}")
    if weight.ndim != 2 or not fits:
        raise ValueError(
            f"shapes do not fit: x {tuple(x.shape)}, weight {tuple(weight.shape)}, "
            f"index {tuple(index.shape)}"
        )


def _implementation(device: torch.device, backend: str | None) -> ModuleType:
    available = {"triton": triton_obstacle(device), "cpu": None, "reference": None}
    if device.type == "cpu":  # Triton's interpreter runs only when it is asked for
        available["triton"] = available.pop("triton")
    chosen = choose_backend("gather_gemm", backend, available, device)
    if chosen == "triton":
        from ritornello.common.kernels.gather_gemm import triton

        return triton
    return cpu if chosen == "cpu" else reference


@torch.library.custom_op("ritornello::gather_linear", mutates_args=())
def _linear(x: Tensor, weight: Tensor, index: Tensor, backend: str | None) -> Tensor:
    return _implementation(x.device, backend).linear(x, weight, index)


@torch.library.custom_op("ritornello::gather_combine", mutates_args=())
def _combine(x: Tensor, weight: Tensor, index: Tensor, backend: str | None) -> Tensor:
    return _implementation(x.device, backend).combine(x, weight, index)


@_linear.register_fake
def _(x: Tensor, weight: Tensor, index: Tensor, backend: str | None) -> Tensor:
    return x.new_empty(x.shape[0], index.shape[0])


@_combine.register_fake
def _(x: Tensor, weight: Tensor, index: Tensor, backend: str | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


def _keep(ctx, inputs, output) -> None:
    x, weight, index, ctx.backend = inputs
    ctx.save_for_backward(x, weight, index)


def _linear_gradient(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    x, weight, index = ctx.saved_tensors
    for_x = _combine(grad, weight, index, ctx.backend) if ctx.needs_input_grad[0] else None
    for_weight = None
    if ctx.needs_input_grad[1]:
        for_weight = torch.zeros_like(weight).index_add_(0, index, grad.T @ x)
    return for_x, for_weight, None, None


def _combine_gradient(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    x, weight, index = ctx.saved_tensors
    for_x = _linear(grad, weight, index, ctx.backend) if ctx.needs_input_grad[0] else None
    for_weight = None
    if ctx.needs_input_grad[1]:
        for_weight = torch.zeros_like(weight).index_add_(0, index, x.T @ grad)
    return for_x, for_weight, None, None


_linear.register_autograd(_linear_gradient, setup_context=_keep)
_combine.register_autograd(_combine_gradient, setup_context=_keep)
