"""Unit-scaled operators with weights: linear, readout, matmul, convolution, embedding (table 8).

Multipliers are folded into the matrix products (`alpha` of addmm) and cost no pass over memory.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ritornello.methods.umup.scale import (
    BinaryConstraint,
    Constraint,
    constrain,
    scale_bwd,
    scale_fwd,
)


class _Linear(torch.autograd.Function):
    """y = s_out (x W^T + b); dx = s_in g W; dW = s_w g^T x; db = s_w sum g.

    With beta=0 addmm ignores its first operand, which only has to have a shape that fits.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, scales: tuple) -> Tensor:
        flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        ctx.save_for_backward(flat, weight)
        ctx.scales, ctx.shape = scales, x.shape
        scale = scales[0]
        if bias is None:
            out = flat.new_empty(len(flat), len(weight))
            out.addmm_(flat, weight.t(), beta=0, alpha=scale)
        else:
            out = torch.addmm(bias, flat, weight.t(), beta=scale, alpha=scale)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[1])

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        flat, weight = ctx.saved_tensors
        _, in_scale, weight_scale = ctx.scales
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        if grad.dim() != 2:
            grad = grad.reshape(-1, weight.shape[0])
        grad_x = grad_weight = None
        if wants_x:
            grad_x = torch.addmm(flat, grad, weight, beta=0, alpha=in_scale).view(ctx.shape)
        if wants_weight:
            grad_weight = torch.addmm(weight, grad.t(), flat, beta=0, alpha=weight_scale)
        return grad_x, grad_weight, grad.sum(0) * weight_scale if wants_bias else None, None


def _apply_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, out_scale: float, in_scale: float
) -> Tensor:
    if x.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"x must have {weight.shape[-1]} features to fit weight {tuple(weight.shape)}, "
            f"got shape {tuple(x.shape)}"
        )
    rows = max(x.numel() // x.shape[-1], 1)
    if torch.is_autocast_enabled(x.device.type):
        # A custom backward runs outside autocast, so the operands are cast where autograd sees it.
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    return _Linear.apply(x, weight, bias, (out_scale, in_scale, rows**-0.5))


def linear_scales(
    weight: Tensor, constraint: Constraint | None, *, readout: bool = False
) -> tuple[float, float]:
    """Multipliers of the output and of the input gradient of `linear` or `linear_readout`."""
    outputs, inputs = weight.shape
    out_scale = 1 / inputs if readout else inputs**-0.5
    out_scale, in_scale = constrain(constraint, out_scale, grad_input=outputs**-0.5)
    return out_scale, in_scale


def linear(
    x: Float[Tensor, "*batch inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None = None,
    constraint: Constraint | None = "to_output_scale",
) -> Float[Tensor, "*batch outputs"]:
    """x W^T + b, times inputs^-1/2; gradients have multipliers of their own.

    Input gradient: outputs^-1/2, or inputs^-1/2 under the default constraint. Weight and bias
    gradient: rows^-1/2, where rows counts the leading axes of `x`.
    """
    return _apply_linear(x, weight, bias, *linear_scales(weight, constraint))


def linear_readout(
    x: Float[Tensor, "*batch inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None = None,
    constraint: Constraint | None = None,
) -> Float[Tensor, "*batch outputs"]:
    """The last projection: 1/inputs forward, as muP asks; input gradient outputs^-1/2."""
    return _apply_linear(x, weight, bias, *linear_scales(weight, constraint, readout=True))


def matmul(
    left: Float[Tensor, "*batch rows inner"],
    right: Float[Tensor, "*batch inner columns"],
    constraint: BinaryConstraint | None = "to_output_scale",
) -> Float[Tensor, "*batch rows columns"]:
    """left @ right times inner^-1/2; gradients columns^-1/2 (left) and rows^-1/2 (right)."""
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    out_scale, left_scale, right_scale = constrain(
        constraint, inner**-0.5, left_grad=columns**-0.5, right_grad=rows**-0.5
    )
    return scale_fwd(scale_bwd(left, left_scale) @ scale_bwd(right, right_scale), out_scale)


def conv1d(
    x: Float[Tensor, "*batch inputs length"],
    weight: Float[Tensor, "outputs inputs_per_group kernel"],
    bias: Float[Tensor, " outputs"] | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    constraint: Constraint | None = "to_output_scale",
) -> Float[Tensor, "*batch outputs out_length"]:
    """Convolution times (inputs_per_group * kernel)^-1/2.

    Input gradient: (stride * groups / (outputs * kernel))^1/2. Weight and bias gradient:
    (batch * out_length)^-1/2.
    """
    outputs, inputs, kernel = weight.shape
    length = (x.shape[-1] + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    positions = length * (x.shape[0] if x.dim() == 3 else 1)
    out_scale, in_scale = constrain(
        constraint,
        (inputs * kernel) ** -0.5,
        grad_input=(stride * groups / (outputs * kernel)) ** 0.5,
    )
    weight = scale_bwd(weight, positions**-0.5)
    bias = None if bias is None else scale_bwd(bias, positions**-0.5)
    out = F.conv1d(scale_bwd(x, in_scale), weight, bias, stride, padding, dilation, groups)
    return scale_fwd(out, out_scale)


def embedding(
    ids: Int[Tensor, "*batch"], weight: Float[Tensor, "vocabulary dim"]
) -> Float[Tensor, "*batch dim"]:
    """Rows of `weight`; their gradient is multiplied by (vocabulary / ids)^1/2."""
    # Scaling the gathered rows' gradient equals scaling the table's, at the cost of the batch only.
    return scale_bwd(F.embedding(ids, weight), (weight.shape[0] / max(ids.numel(), 1)) ** 0.5)
