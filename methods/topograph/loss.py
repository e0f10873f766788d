"""The loss: critical regions are pushed towards the label (sec. 3, L_CG)."""

from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ritornello.methods.topograph.codes import Connectivity, check_connectivity, combine
from ritornello.methods.topograph.inputs import (
    check_logits,
    largest_class,
    scores_and_classes,
    target_classes,
)
from ritornello.methods.topograph.overlap import SoftDiceCLDiceLoss
from ritornello.methods.topograph.regions import BACKENDS, Backend, critical_pixels

Aggregation = Literal["mean", "rms", "sum", "max", "min", "ce"]
ThresholdNoise = Literal["none", "gaussian", "uniform"]


class TopographLoss(nn.Module):
    """L_CG: over samples and classes, the sum over critical regions of an aggregate of q.

    q(x) is the probability of the class that is predicted at x. Gradients flow through q alone. The
    sum is divided by batch size and number of classes, not by the number of regions.

    Args:
        softmax: whether the input is logits; else it is class probabilities.
        include_background: whether class 0 counts too.
        connectivity: of the foreground (each class against the rest), 8 or 4.
        aggregation: over the pixels of a region: "mean", "rms", "sum", "max", "min", or "ce", the
            cross-entropy of the probabilities, taken as logits, against the label.
        threshold_noise: draw a class for each sample and shift its probability by ν / (classes − 1)
            before regions are found, ν from N(0, scale²) ("gaussian") or U(0, scale) ("uniform").
        threshold_scale: that scale.
        pad: put a ring around each image that belongs to no class; without it, errors along the
            border are missed.
        ignore_index: target value whose pixels belong to no class in both masks.
        backend: as in `critical_regions`.

    Raises:
        ValueError: an argument that is none of these.
    """

    def __init__(
        self,
        softmax: bool = True,
        include_background: bool = True,
        connectivity: Connectivity = 8,
        aggregation: Aggregation = "mean",
        threshold_noise: ThresholdNoise = "none",
        threshold_scale: float = 0.0,
        pad: bool = True,
        ignore_index: int | None = None,
        backend: Backend = "auto",
    ):
        super().__init__()
        check_connectivity(connectivity)
        for name, value, accepted in (
            ("aggregation", aggregation, get_args(Aggregation)),
            ("threshold_noise", threshold_noise, get_args(ThresholdNoise)),
            ("backend", backend, BACKENDS),
        ):
            if value not in accepted:
                raise ValueError(f"{name} must be one of {', '.join(accepted)}, got {value!r}")
        if threshold_scale < 0:
            raise ValueError(f"threshold_scale must be >= 0, got {threshold_scale}")
        self.softmax, self.include_background = softmax, include_background
        self.connectivity: Connectivity = connectivity
        self.aggregation: Aggregation = aggregation
        self.threshold_noise, self.threshold_scale = threshold_noise, threshold_scale
        self.pad, self.ignore_index = pad, ignore_index
        self.backend: Backend = backend

    def forward(
        self,
        logits: Float[Tensor, "batch classes height width"],
        target: Tensor,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of a batch, in the dtype of `logits` (computed in fp32, fp64 for fp64).

        Args:
            logits: scores of each class.
            target: class indices (batch, height, width), or one-hot (batch, classes, ...).
            generator: of the threshold noise.

        Raises:
            ValueError: logits not (batch, classes, height, width), empty, with NaN, or of one class
                with softmax; target of another shape, out of range or not one-hot.
        """
        # A compiled caller breaks its graph here: labelling has no graph of tensors. (As a
        # decorator, `disable` would import the compiler with this module.)
        if torch.compiler.is_compiling():
            outside = cast(Callable[..., Tensor], torch.compiler.disable(self._loss))
            return outside(logits, target, generator)
        return self._loss(logits, target, generator)

    def _loss(
        self, logits: Tensor, target: Tensor, generator: torch.Generator | None
    ) -> Float[Tensor, ""]:
        check_logits(logits)
        classes = target_classes(target, logits, self.ignore_index)
        predicted = largest_class(self._perturbed(logits.detach(), generator))
        predicted.masked_fill_(classes < 0, -1)
        kinds = range(0 if self.include_background else 1, logits.shape[1])
        masks = [(predicted == k, classes == k) for k in kinds]
        codes = torch.cat([combine(p, g, self.connectivity, self.pad) for p, g in masks])
        position, region, count = critical_pixels(codes, self.backend, self.pad)
        pixels = classes[0].numel()
        sample, pixel = position % classes.numel() // pixels, position % pixels
        scores = logits.flatten(2)[sample, :, pixel]
        scores = scores if scores.dtype == torch.float64 else scores.float()
        if self.softmax:
            scores = scores.softmax(1)
        if self.aggregation == "ce":
            values = F.cross_entropy(scores, classes.flatten(1)[sample, pixel], reduction="none")
        else:
            chosen = predicted.flatten(1)[sample, pixel].long()
            values = scores.gather(1, chosen[:, None])[:, 0]
        total = aggregate(values, region, count, self.aggregation).sum()
        return (total / (len(logits) * len(kinds))).to(logits.dtype)

    def _perturbed(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        """Scores whose largest class is the prediction: with noise, shifted probabilities."""
        if self.threshold_noise == "none" or self.threshold_scale == 0:
            return logits
        scores = logits.float().softmax(1) if self.softmax else logits.float()
        batch, others = len(scores), scores.shape[1] - 1
        device = "cpu" if generator is None else generator.device
        raised = torch.randint(others + 1, (batch,), generator=generator, device=device)
        draw = torch.randn if self.threshold_noise == "gaussian" else torch.rand
        noise = draw((batch,), generator=generator, device=device) * self.threshold_scale / others
        shift = (-noise / others)[:, None].repeat(1, others + 1)
        shift[torch.arange(batch, device=device), raised] = noise
        return scores + shift.to(scores.device)[:, :, None, None]


def aggregate(
    values: Float[Tensor, "pixels"],
    region: Int[Tensor, "pixels"],
    count: int,
    aggregation: Aggregation,
) -> Float[Tensor, "regions"]:
    """One value for each region from those of its pixels (agg in L_CG)."""
    zeros = values.new_zeros(count)
    if aggregation in ("max", "min"):
        return zeros.scatter_reduce(0, region, values, f"a{aggregation}", include_self=False)
    if aggregation == "rms":
        values = values.square()
    total = zeros.index_add(0, region, values)
    if aggregation == "sum":
        return total
    mean = total / torch.bincount(region, minlength=count)
    return mean.sqrt() if aggregation == "rms" else mean


class DiceTopographLoss(nn.Module):
    """(1 − β) Dice + β clDice + α L_CG.

    Args:
        alpha: weight of L_CG where a call does not give another; the paper has it at 0 in the first
            epochs.
        beta: share of clDice.
        iterations: erosions of clDice's skeletons.
        options: arguments of `TopographLoss`.
    """

    def __init__(
        self, alpha: float = 0.3, *, beta: float = 0.0, iterations: int = 5, **options: Any
    ):
        super().__init__()
        if alpha < 0:
            raise ValueError(f"alpha must be >= 0, got {alpha}")
        self.alpha = alpha
        self.topograph = TopographLoss(**options)
        self.overlap = SoftDiceCLDiceLoss(
            beta, iterations=iterations, softmax=self.topograph.softmax
        )

    def forward(
        self,
        logits: Float[Tensor, "batch classes height width"],
        target: Tensor,
        alpha: float | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """The loss, and its terms "dice", "cldice" and "topograph" before weighting.

        With alpha 0 no graph is built and that term is 0.

        Raises:
            ValueError: as `TopographLoss`.
        """
        alpha = self.alpha if alpha is None else alpha
        topograph = self.topograph
        scores, classes = scores_and_classes(
            logits, target, softmax=topograph.softmax, ignore=topograph.ignore_index
        )
        dice, cldice = self.overlap.terms(scores, classes)
        topology = dice.new_zeros(())
        if alpha:
            topology = topograph(logits, target, generator)
        beta = self.overlap.beta
        loss = (1 - beta) * dice + beta * cldice + alpha * topology
        terms = {"dice": dice, "cldice": cldice, "topograph": topology}
        return loss.to(logits.dtype), {name: term.detach() for name, term in terms.items()}
