"""What the losses accept, checked once."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def check_logits(logits: Float[Tensor, "batch classes height width"]) -> None:
    """Raises ValueError unless logits are those of a non-empty batch of 2D images, without NaN."""
    if logits.ndim != 4:
        raise ValueError(
            "logits must be (batch, classes, height, width), 2D images only, "
            f"got shape {tuple(logits.shape)}"
        )
    if logits.numel() == 0:
        raise ValueError(f"logits must not be empty, got shape {tuple(logits.shape)}")
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating point, got {logits.dtype}")
    if logits.shape[1] == 1:
        raise ValueError(
            "logits must have at least 2 classes, got 1: stack background and foreground, "
            "as (0, logit) or as (1 − p, p)"
        )
    if bool(torch.isnan(logits.detach()).any()):
        raise ValueError("logits must not hold NaN: no class is the largest there")


def target_classes(
    target: Tensor, logits: Float[Tensor, "batch classes height width"], ignore: int | None = None
) -> Int[Tensor, "batch height width"]:
    """Class indices of a target that holds indices or is one-hot; −1 at ignored pixels.

    Raises:
        ValueError: another shape, indices outside [0, classes), or not one-hot.
    """
    batch, classes, height, width = logits.shape
    if target.shape == logits.shape:
        binary = ((target == 0) | (target == 1)).all()
        if not bool(binary) or not bool((target.sum(1) == 1).all()):
            raise ValueError(
                "target of the shape of logits must be one-hot: 0 and 1, one 1 a pixel"
            )
        return target.to(torch.uint8).argmax(1)
    if target.shape != (batch, height, width):
        raise ValueError(
            f"target must be class indices {(batch, height, width)} or one-hot "
            f"{tuple(logits.shape)}, got {tuple(target.shape)}"
        )
    if target.is_floating_point() or target.is_complex():
        raise ValueError(f"target must hold integer class indices, got {target.dtype}")
    target = target.long()
    ignored = None if ignore is None else target == ignore
    wanted = target if ignored is None else target.masked_fill(ignored, 0)
    low, high = wanted.aminmax()
    if low < 0 or high >= classes:
        raise ValueError(
            f"target must be in [0, {classes}), got values from {int(low)} to {int(high)}"
        )
    return target if ignored is None else target.masked_fill(ignored, -1)


def scores_and_classes(
    logits: Float[Tensor, "batch classes height width"],
    target: Tensor,
    *,
    softmax: bool,
    ignore: int | None = None,
) -> tuple[Float[Tensor, "batch classes height width"], Int[Tensor, "batch height width"]]:
    """Class probabilities and class indices of what a loss is called with.

    Probabilities are fp32 (fp64 for fp64): sums over many pixels overflow half precision.

    Raises:
        ValueError: see `check_logits` and `target_classes`.
    """
    check_logits(logits)
    classes = target_classes(target, logits, ignore)
    scores = logits if logits.dtype == torch.float64 else logits.float()
    return scores.softmax(1) if softmax else scores, classes


def largest_class(
    scores: Float[Tensor, "batch classes height width"],
) -> Int[Tensor, "batch height width"]:
    """The class of the largest score as int16; the lowest of several."""
    best = scores[:, 0]
    index = torch.zeros_like(best, dtype=torch.int16)
    for k in range(1, scores.shape[1]):
        better = scores[:, k] > best
        index.masked_fill_(better, k)
        if k + 1 < scores.shape[1]:
            best = torch.maximum(best, scores[:, k])
    return index
