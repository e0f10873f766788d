"""Overlap losses: soft Dice and soft clDice (the paper's baselines and the base of its loss)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ritornello.methods.topograph.inputs import scores_and_classes

SMOOTH = 1e-5


def dice_loss(
    scores: Float[Tensor, "batch classes height width"],
    target: Int[Tensor, "batch height width"],
) -> Float[Tensor, ""]:
    """1 − Dice of soft masks: sums over batch and pixels, then the mean over all classes.

    Args:
        scores: class probabilities.
        target: class indices; −1 for pixels that do not count.
    """
    scores, labels = _masks(scores, target)
    intersection = (scores * labels).sum(dim=(0, 2, 3))
    total = (scores + labels).sum(dim=(0, 2, 3))
    return (1 - (2 * intersection + SMOOTH) / (total + SMOOTH)).mean()


def _masks(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and one-hot labels, both 0 where the target is −1."""
    labels = [target == k for k in range(scores.shape[1])]
    return scores * (target >= 0)[:, None], torch.stack(labels, 1).to(scores.dtype)


def soft_skeleton(
    mask: Float[Tensor, "batch classes height width"], iterations: int
) -> Float[Tensor, "batch classes height width"]:
    """The skeleton of a soft mask by repeated erosion (cross) and opening (dilation 3×3)."""

    def erode(x: Tensor) -> Tensor:
        rows = -F.max_pool2d(-x, (3, 1), 1, (1, 0))
        return torch.minimum(rows, -F.max_pool2d(-x, (1, 3), 1, (0, 1)))

    def residue(x: Tensor) -> tuple[Tensor, Tensor]:
        eroded = erode(x)
        return F.relu(x - F.max_pool2d(eroded, 3, 1, 1)), eroded

    skeleton, eroded = residue(mask)
    for _ in range(iterations):
        delta, eroded = residue(eroded)
        skeleton = skeleton + F.relu(delta - skeleton * delta)
    return skeleton


def cldice_loss(
    scores: Float[Tensor, "batch classes height width"],
    target: Int[Tensor, "batch height width"],
    iterations: int = 5,
) -> Float[Tensor, ""]:
    """1 − clDice over the classes but the first: agreement of each skeleton with the other mask.

    Args:
        scores: class probabilities.
        target: class indices; −1 for pixels that do not count.
        iterations: erosions of the skeleton; at least half the width of what is segmented.
    """
    masks, labels = (x[:, 1:] for x in _masks(scores, target))

    def share(skeleton: Tensor, mask: Tensor) -> Tensor:
        inside = (skeleton * mask).sum(dim=(0, 2, 3))
        return (inside + SMOOTH) / (skeleton.sum(dim=(0, 2, 3)) + SMOOTH)

    precision = share(soft_skeleton(masks, iterations), labels)
    sensitivity = share(soft_skeleton(labels, iterations), masks)
    return (1 - 2 * precision * sensitivity / (precision + sensitivity)).mean()


class SoftDiceCLDiceLoss(nn.Module):
    """(1 − β) Dice + β clDice on the softmax of logits.

    Args:
        beta: share of clDice; 0 is plain Dice.
        iterations: erosions of clDice's skeletons.
        softmax: whether the input is logits; else it is class probabilities.
    """

    def __init__(self, beta: float = 0.5, *, iterations: int = 5, softmax: bool = True):
        super().__init__()
        if not 0 <= beta <= 1:
            raise ValueError(f"beta must be in [0, 1], got {beta}")
        if iterations < 0:
            raise ValueError(f"iterations must be >= 0, got {iterations}")
        self.beta, self.iterations, self.softmax = beta, iterations, softmax

    def forward(
        self, logits: Float[Tensor, "batch classes height width"], target: Tensor
    ) -> Float[Tensor, ""]:
        """The loss, in the dtype of `logits`; `target` holds class indices or is one-hot.

        Raises:
            ValueError: as `TopographLoss`.
        """
        scores, classes = scores_and_classes(logits, target, softmax=self.softmax)
        dice, cldice = self.terms(scores, classes)
        return ((1 - self.beta) * dice + self.beta * cldice).to(logits.dtype)

    def terms(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Dice and clDice; the latter is 0 when it has no share."""
        dice = dice_loss(scores, target)
        if not self.beta:
            return dice, dice.new_zeros(())
        return dice, cldice_loss(scores, target, self.iterations)
