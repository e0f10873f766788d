"""Unit-scaled losses: the reported value is the usual one, the gradient has unit scale (table 8).

The gradient is not divided by the number of rows, so it is not the gradient of the reported mean.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from ritornello.methods.umup.scale import check_positive, scale_bwd, scale_fwd

Reduction = Literal["mean", "sum"]


class _CrossEntropy(torch.autograd.Function):
    """loss = sum CE(mult z) / count; dz = (p - onehot) V / (V - 1)^1/2 upstream."""

    @staticmethod
    def forward(
        logits: Tensor, target: Tensor, mult: float, ignore_index: int, count: float | None
    ) -> tuple[Tensor, Tensor]:
        log_probs = F.log_softmax(logits if mult == 1 else logits * mult, dim=-1)
        loss = F.nll_loss(log_probs, target, ignore_index=ignore_index, reduction="sum")
        if count is None:
            loss = loss / (target != ignore_index).sum()
        elif count != 1:
            loss = loss / count
        return loss, log_probs

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, target, _, ctx.ignore_index, _ = inputs
        ctx.save_for_backward(target, output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor, _):
        target, log_probs = ctx.saved_tensors
        classes = log_probs.shape[-1]
        kept = target != ctx.ignore_index
        safe = torch.where(kept, target, 0).unsqueeze(-1)
        delta = log_probs.exp().scatter_add(-1, safe, log_probs.new_full(safe.shape, -1.0))
        scale = grad * (classes / (classes - 1) ** 0.5)
        return delta * (kept.unsqueeze(-1) * scale), None, None, None, None


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
    flat, rows = logits.reshape(-1, logits.shape[-1]), target.reshape(-1)
    count = 1.0 if reduction == "sum" else (float(rows.numel()) if count_ignored else None)
    if torch.is_autocast_enabled(flat.device.type):
        flat = flat.float()  # as torch's own cross entropy under autocast
    return _CrossEntropy.apply(flat, rows, float(mult), ignore_index, count)[0]


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
