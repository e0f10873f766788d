"""The operator `ritornello::hadamard_transform`: dispatch, fake kernel, gradient."""

import torch
from jaxtyping import Float
from torch import Tensor

from ritornello.common.kernels.dispatch import (
    choose_backend,
    refuse_tangents,
    triton_obstacle,
)
from ritornello.common.kernels.hadamard import cpu, reference


def hadamard_transform(
    x: Float[Tensor, "*batch n"],
    scale: float = 1.0,
    *,
    transpose: bool = False,
    backend: str | None = None,
) -> Float[Tensor, "*batch n"]:
    """`scale * x @ hadamard_matrix(n)` along the last dimension, without the dense product.

    With scale = n^-1/2 the transform is orthogonal. It is computed in float32 at least and rounded
    once, so half precision does not overflow inside.

    Args:
        x: floating point, any device.
        scale: factor on the result.
        transpose: multiply by the transpose instead (the inverse, up to a factor n).
        backend: "triton", "cpu" (two-factor Kronecker form, any device) or "reference" (dense);
            None lets the environment variable RITORNELLO_BACKEND or the device decide.

    Raises:
        ValueError: `x` is not floating point, no Hadamard matrix has the order n, or the forced
            backend cannot run.
        RuntimeError: forward-mode derivatives.
    """
    if not x.is_floating_point():
        raise ValueError(f"x must be floating point, got {x.dtype}")
    if x.ndim == 0:
        raise ValueError("x must have at least one dimension, got a scalar")
    refuse_tangents("hadamard_transform", x)
    return _operator(x, scale, transpose, backend)


@torch.library.custom_op("ritornello::hadamard_transform", mutates_args=())
def _operator(x: Tensor, scale: float, transpose: bool, backend: str | None) -> Tensor:
    single = "it computes in float32" if x.dtype == torch.float64 else None
    triton = triton_obstacle(x.device) or single
    available = {"triton": triton, "cpu": None, "reference": None}
    chosen = choose_backend("hadamard_transform", backend, available, x.device)
    if chosen == "triton":
        from ritornello.common.kernels.hadamard import triton

        return triton.transform(x, scale, transpose)
    return (cpu if chosen == "cpu" else reference).transform(x, scale, transpose)


@_operator.register_fake
def _(x: Tensor, scale: float, transpose: bool, backend: str | None) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep(ctx, inputs, output) -> None:
    _, ctx.scale, ctx.transpose, ctx.backend = inputs


def _gradient(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _operator(grad, ctx.scale, not ctx.transpose, ctx.backend), None, None, None


_operator.register_autograd(_gradient, setup_context=_keep)
