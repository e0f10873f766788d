"""One matmul per group of rows: torch's grouped GEMM, without its conditions on the layout."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from ritornello.common.kernels.dispatch import refuse_tangents

_ALIGNMENT = 16  # bytes: what the grouped GEMM asks of every row


def grouped_matmul(
    x: Float[Tensor, "rows inner"],
    weight: Float[Tensor, "groups inner outer"],
    offsets: Int[Tensor, "groups"],
) -> Float[Tensor, "rows outer"]:
    """Multiplies the rows of group g, up to row offsets[g], by weight[g].

    Under autocast both sides take its dtype. Widths that are not a multiple of 16 bytes are
    padded with zeros, which costs a copy of both sides. Differentiable once.

    Args:
        x: rows sorted by group.
        weight: one matrix per group.
        offsets: int32, end of each group; the last one is the number of rows.

    Raises:
        RuntimeError: forward-mode derivatives.
    """
    refuse_tangents("grouped_matmul", x, weight)
    if torch.is_autocast_enabled(x.device.type):  # the operator is not on autocast's list
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    step = max(_ALIGNMENT // x.element_size(), 1)
    outer = weight.shape[2]
    inner_gap, outer_gap = -weight.shape[1] % step, -outer % step
    if inner_gap:
        x = functional.pad(x, (0, inner_gap))
    if inner_gap or outer_gap:
        weight = functional.pad(weight, (0, outer_gap, 0, inner_gap))
    return grouped_rows(x.contiguous(), weight, offsets)[:, :outer]


# torch's own operator has no fake kernel for fp32 and refuses expanded gradients: these two do not.
@torch.library.custom_op("ritornello::grouped_rows", mutates_args=())
def grouped_rows(x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """Rows of each group times the group's matrix, aligned layouts only."""
    if x.dtype == torch.float64:  # torch's operator stops at fp32
        return torch.cat([rows @ w for rows, w in zip(_runs(x, offsets), weight, strict=True)])
    return functional.grouped_mm(x, weight, offs=offsets)


@torch.library.custom_op("ritornello::grouped_outer", mutates_args=())
def grouped_outer(x: Tensor, y: Tensor, offsets: Tensor) -> Tensor:
    """xᵀ y over the rows of each group, (groups, inner, outer), aligned layouts only."""
    if x.dtype == torch.float64:
        runs = zip(_runs(x, offsets), _runs(y, offsets), strict=True)
        return torch.stack([left.t() @ right for left, right in runs])
    return functional.grouped_mm(x.t(), y, offs=offsets)


def _runs(x: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
    """The rows of each group."""
    return x.tensor_split(offsets[:-1].tolist())


@grouped_rows.register_fake
def _(x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


@grouped_outer.register_fake
def _(x: Tensor, y: Tensor, offsets: Tensor) -> Tensor:
    return x.new_empty(offsets.shape[0], x.shape[1], y.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, offsets = ctx.saved_tensors
    gradient = gradient.contiguous()
    needs_x, needs_weight, _ = ctx.needs_input_grad
    return (
        grouped_rows(gradient, weight.transpose(1, 2), offsets) if needs_x else None,
        grouped_outer(x, gradient, offsets) if needs_weight else None,
        None,
    )


grouped_rows.register_autograd(_backward, setup_context=_save)
