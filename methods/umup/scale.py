"""Separate forward and backward multipliers, and the constraints that tie them (sec. 2.1, app. B).

A multiplier that differs between the passes leaves gradients right up to one constant only on a
cut edge: an edge that every path from the parameters above it to the loss crosses. Elsewhere a
constraint makes the forward and the backward multiplier equal.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Constraint = Literal["to_output_scale", "to_grad_input_scale", "gmean", "hmean", "amean"]
BinaryConstraint = Literal[
    "to_output_scale", "to_left_grad_scale", "to_right_grad_scale", "gmean", "hmean", "amean"
]

_MEANS: dict[str, Callable[..., float]] = {
    "gmean": lambda *scales: math.prod(scales) ** (1 / len(scales)),
    "hmean": lambda *scales: len(scales) / sum(1 / scale for scale in scales),
    "amean": lambda *scales: sum(scales) / len(scales),
}


class _Scale(torch.autograd.Function):
    """y = forward_scale * x; dx = backward_scale * dy."""

    @staticmethod
    def forward(ctx, x: Tensor, forward_scale: float | Tensor, backward_scale: float) -> Tensor:
        ctx.backward_scale = backward_scale
        one = isinstance(forward_scale, float) and forward_scale == 1
        return x.view_as(x) if one else x * forward_scale

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad if ctx.backward_scale == 1 else grad * ctx.backward_scale, None, None


def scale_elementwise(
    x: Tensor, forward_scale: float | Tensor, backward_scale: float
) -> Float[Tensor, "*shape"]:
    """Multiplies the value by `forward_scale` and the gradient by `backward_scale`."""
    return _Scale.apply(x, forward_scale, backward_scale)


def scale_fwd(x: Float[Tensor, "*shape"], scale: float) -> Float[Tensor, "*shape"]:
    """Multiplies the value by `scale` and leaves the gradient alone."""
    return _Scale.apply(x, float(scale), 1.0)


def scale_bwd(x: Float[Tensor, "*shape"], scale: float) -> Float[Tensor, "*shape"]:
    """Multiplies the gradient by `scale` and leaves the value alone."""
    return _Scale.apply(x, 1.0, float(scale))


def constrain(constraint: str | None, output: float, **grads: float) -> tuple[float, ...]:
    """Ties the multipliers of an operator's output and of its inputs' gradients.

    Args:
        constraint: None keeps them as they are; "to_output_scale" and "to_<name>_scale" set all
            to that one; "gmean", "hmean", "amean" to a mean of all.
        output: multiplier of the output.
        **grads: multipliers of the gradients, by name ("grad_input", or "left_grad" and
            "right_grad").

    Returns:
        The multipliers in the order given.

    Raises:
        ValueError: if the constraint is unknown; the message lists the valid ones.
    """
    scales = (output, *grads.values())
    if constraint is None:
        return scales
    targets = {"to_output_scale": output} | {f"to_{name}_scale": s for name, s in grads.items()}
    if constraint in _MEANS:
        return (_MEANS[constraint](*scales),) * len(scales)
    if constraint not in targets:
        valid = [*targets, *_MEANS]
        raise ValueError(f"constraint must be None or one of {valid}, got {constraint!r}")
    return (targets[constraint],) * len(scales)


def log_interpolate(alpha: float, low: float, high: float) -> float:
    """exp(alpha ln high + (1 - alpha) ln low): `low` at alpha 0, `high` at alpha 1 (app. B)."""
    return math.exp(alpha * math.log(high) + (1 - alpha) * math.log(low))


def check_positive(name: str, value: float) -> None:
    """Raises ValueError unless `value` is a positive finite number."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, got {value}")
