"""Unit-scaled losses: the reported value is the usual one, the gradient has unit scale (table 8).

The gradient is not divided by the number of rows, so it is not the gradient of the reported mean.
"""

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ritornello.methods.umup.scale import (
    check_positive,
    scale_bwd,
    scale_elementwise,
    scale_fwd,
)

Reduction = Literal["mean", "sum"]


def cross_entropy(
    logits: Float[Tensor, "*rows classes"],
    target: Int[Tensor, "*rows"],
    *,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    mult: float = 1.0,
    count_ignored: bool = False,
    weight: None = None,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Cross entropy of softmax(mult * logits), with a unit-scaled gradient.

    Args:
        logits: any number of leading axes.
        target: class of each row; `ignore_index` rows add nothing.
        reduction: "mean" or "sum".
        ignore_index: target value of rows to leave out.
        mult: inverse temperature, applied in the forward pass only.
        count_ignored: divide the mean by all rows, ignored ones included, as the published
            library does.
        weight: not supported, must be None.
        label_smoothing: not supported, must be 0.

    Raises:
        ValueError: for class weights, label smoothing, unknown reductions or shapes that differ.
    """
    check_positive("mult", mult)
    if weight is not None or label_smoothing:
        raise ValueError("weight and label_smoothing have no unit-scaled form: leave them out")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
    if logits.shape[:-1] != target.shape or logits.shape[-1] < 2:
        raise ValueError(
            f"logits must be (..., classes >= 2) with target's rows {tuple(target.shape)}, "
            f"got {tuple(logits.shape)}"
        )
    classes = logits.shape[-1]
    if mult != 1:
        logits = scale_fwd(logits, mult)
    total = F.cross_entropy(
        logits.reshape(-1, classes), target.flatten(), ignore_index=ignore_index, reduction="sum"
    )
    count: float | Tensor = 1.0
    if reduction == "mean":
        count = target.numel() if count_ignored else (target != ignore_index).sum().to(total.dtype)
    # dz = (p - onehot) V / (V - 1)^1/2: scaling the loss's own gradient, a scalar, costs no pass.
    return scale_elementwise(total, 1 / count, classes / (classes - 1) ** 0.5)


def mse_loss(
    x: Float[Tensor, "*shape"], target: Float[Tensor, "*shape"], *, reduction: Reduction = "mean"
) -> Float[Tensor, ""]:
    """Mean (or sum) of squared differences; both gradients are multiplied by 8^-1/2."""
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
    if x.shape != target.shape:
        raise ValueError(f"target must have x's shape {tuple(x.shape)}, got {tuple(target.shape)}")
    total = (scale_bwd(x, 8**-0.5) - scale_bwd(target, 8**-0.5)).square().sum()
    return scale_fwd(total, 1 / x.numel()) if reduction == "mean" else total
