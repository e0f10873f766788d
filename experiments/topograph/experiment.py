"""What the cells of Topograph measure."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.topograph.data import Pairs, SegmentationData
from ritornello.experiments.topograph.figures import figures
from ritornello.experiments.topograph.networks import networks, scores_around
from ritornello.experiments.topograph.training import Objective, Recipe, Trainer, predict
from ritornello.methods.topograph import (
    TopographLoss,
    betti_errors,
    critical_regions,
    diu,
    published_count,
)
from ritornello.methods.topograph.codes import Connectivity
from ritornello.methods.topograph.overlap import soft_skeleton

__all__ = ["Guarantee", "LossTime", "RegionRule", "Segmentation", "figures"]


@dataclass
class Segmentation(Experiment):
    """A network is trained with an objective; its test masks are held to the labels.

    Attributes:
        data: images and masks.
        recipe: of the training.
        shown: how many test images are kept for the figures, those with the most foreground.
    """

    data: SegmentationData
    recipe: Recipe
    shown: int

    def prepare(self) -> None:
        """Looks at the images before anything is trained."""
        self.data.check()

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory:
        return tempfile.TemporaryDirectory(prefix="topograph-")

    def measure(self, arm: Objective, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Trains, and measures errors and overlap with a sample for each test image."""
        images, masks = self.data.load("train", cell.seed)
        classes, folder = self.data.classes, Path(self._folder.name)
        trainer = Trainer(images, masks, classes, self.recipe, cell.seed, folder)
        started = time.process_time()
        model, result = trainer.train(arm, context.scratch)
        yield Measurement("training_seconds", time.process_time() - started, unit="s")
        for step, loss in enumerate(result.losses):
            context.log(step, loss=loss)
        images, masks = self.data.load("test", cell.seed)
        predicted = predict(model, images, self.recipe.batch_size)
        if self.shown:
            covered = (masks > 0).flatten(1).float().mean(1)
            chosen = covered.argsort(descending=True, stable=True)[: self.shown]
            np.savez_compressed(
                context.artifacts / "shown.npz",
                images=images[chosen, 0].half().numpy(),
                masks=masks[chosen].byte().numpy(),
                predicted=predicted[chosen].byte().numpy(),
            )
        yield from mask_errors(predicted, masks, classes)


def mask_errors(
    pred: Int[Tensor, "images height width"], gt: Int[Tensor, "images height width"], classes: int
) -> Iterator[Measurement]:
    """Topological errors and overlap of each test image, 8-connected foreground, padded.

    Each class but the background is held against the rest; errors are summed over classes, overlaps
    averaged. The published count, slow and for comparison only, is that of every fourth image.
    """
    by_class = [_class_errors(pred == k, gt == k) for k in range(1, classes)]
    for metric in by_class[0]:
        values = torch.stack([errors[metric].double() for errors in by_class])
        values = values.mean(0) if metric in ("dice", "cldice") else values.sum(0)
        yield Measurement(metric, values.mean().item(), samples=values.tolist())


def _class_errors(
    pred: Bool[Tensor, "images height width"], gt: Bool[Tensor, "images height width"]
) -> dict[str, Tensor]:
    strict, loose = diu(pred, gt), betti_errors(pred, gt)
    return {
        "diu": strict.total,
        "diu_merged_components": strict.ker_fg,
        "diu_missing_or_false_components": strict.coker_fg,
        "diu_merged_background": strict.ker_bg,
        "diu_missing_or_false_loops": strict.coker_bg,
        "betti_0_error": loose.betti_0,
        "betti_1_error": loose.betti_1,
        "betti_matching_error": loose.matching,
        "published_count": torch.tensor(
            [published_count(p, g) for p, g in zip(pred[::4], gt[::4], strict=True)]
        ),
        "dice": _overlap(pred.float(), gt.float()),
        "cldice": _centreline_overlap(pred.float(), gt.float()),
    }


def _overlap(pred: Tensor, gt: Tensor) -> Tensor:
    both, either = (pred * gt).sum((1, 2)), (pred + gt).sum((1, 2))
    return torch.where(either > 0, 2 * both / either, torch.ones_like(both))


def _centreline_overlap(pred: Tensor, gt: Tensor) -> Tensor:
    """clDice of binary masks with skeletons by ten erosions."""
    lines = [soft_skeleton(mask[:, None], 10)[:, 0] for mask in (pred, gt)]
    shares = []
    for line, mask in zip(lines, (gt, pred), strict=True):
        length = line.sum((1, 2))
        inside = (line * mask).sum((1, 2))
        shares.append(torch.where(length > 0, inside / length, torch.ones_like(length)))
    return 2 * shares[0] * shares[1] / (shares[0] + shares[1]).clamp(min=1e-8)


@dataclass
class LossTime(Experiment):
    """Processor time of a loss, forward and backward, on one thread, by image size.

    All sizes are timed in turn, in rounds, so that a machine that slows down slows all of them; of
    each size the median over rounds is taken. A round calls small sizes several times.

    Attributes:
        sizes: heights and widths of the generated networks.
        fit_from: the growth exponent is fitted to sizes from here on.
        seconds: time spent on rounds, one round at least.
    """

    sizes: list[int]
    fit_from: int
    seconds: float

    def measure(self, arm: nn.Module, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Seconds a call of every size, and the exponent of growth."""
        problems = {size: _timed_problem(size, cell.seed) for size in self.sizes}
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            times = self._times(arm, problems)
        finally:
            torch.set_num_threads(threads)
        for size, value in times.items():
            yield Measurement("loss_seconds", value, unit="s", coordinates={"size": size})
        fitted = [size for size in self.sizes if size >= self.fit_from]
        if len(fitted) > 1:
            logs = np.log2([[size**2, times[size]] for size in fitted])
            yield Measurement("growth_exponent", np.polyfit(*logs.T, deg=1)[0])

    def _times(self, loss: nn.Module, problems: dict[int, Pairs]) -> dict[int, float]:
        smallest = problems[min(problems)]
        _seconds_a_call(loss, smallest, 1)  # builds, imports
        rounds: dict[int, list[float]] = {size: [] for size in problems}
        started = time.process_time()
        while True:
            for size, problem in problems.items():
                calls = max(1, (max(problems) // size) ** 2 // 16)
                rounds[size].append(_seconds_a_call(loss, problem, calls))
            if time.process_time() - started >= self.seconds:
                return {size: float(np.median(values)) for size, values in rounds.items()}


def _timed_problem(size: int, seed: int) -> Pairs:
    _, target = networks(1, size, seed)
    return scores_around(target, seed, noise=0.7).requires_grad_(), target


def _seconds_a_call(loss: nn.Module, problem: Pairs, calls: int) -> float:
    logits, target = problem
    started = time.process_time()
    for _ in range(calls):
        logits.grad = None
        loss(logits, target).backward()
    return (time.process_time() - started) / calls


@dataclass(frozen=True)
class RegionRule:
    """How critical regions are found: arguments of `critical_regions`."""

    connectivity: Connectivity = 8
    pad: bool = True


@dataclass
class Guarantee(Experiment):
    """Critical regions against the exact ξ, on random pairs of masks of all degrees of error.

    Attributes:
        sizes: heights and widths of masks.
        pairs: of each size.
        counted: of those, how many the published count is compared on.
    """

    sizes: list[int]
    pairs: int
    counted: int

    def measure(self, arm: RegionRule, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """How often the guarantee and its converse fail, and what goes with ξ."""
        tables = [self._table(size, arm, cell.seed) for size in self.sizes]
        count, strict, published, _, loss = table = torch.cat(tables, dim=1)
        clean = count == 0
        yield _share("missed", clean & (strict > 0))
        yield _share("clean", clean)
        yield _share("flagged_without_error", ~clean & (strict == 0))
        counted = published >= 0
        yield _share("published_count_is_exact", (published == strict)[counted])
        for metric, values in (("rank_correlation", count), ("loss_rank_correlation", loss)):
            ranks = torch.from_numpy(np.stack([_ranks(values), _ranks(strict)]))
            yield Measurement(metric, torch.corrcoef(ranks)[0, 1].item())
        np.save(context.artifacts / "pairs.npy", table.float().numpy())

    def _table(self, size: int, arm: RegionRule, seed: int) -> Tensor:
        """By pair: critical regions, ξ, published count (−1: none), Betti matching error, L_CG."""
        scores, gt = random_scores(self.pairs, size, seed)
        pred = scores > 0
        found, _ = critical_regions(pred, gt, connectivity=arm.connectivity, pad=arm.pad)
        regions = [len(image[image >= 0].unique()) for image in found]
        published = [
            published_count(p, g, arm.connectivity, arm.pad)
            for p, g in zip(pred[: self.counted], gt, strict=False)
        ]
        published += [-1] * (self.pairs - len(published))
        strict = diu(pred, gt, arm.connectivity).total
        counts = torch.tensor([regions, published])
        objective = TopographLoss(
            include_background=False, connectivity=arm.connectivity, pad=arm.pad
        )
        losses = torch.stack(
            [
                objective(torch.stack([-s, s])[None], g[None].long())
                for s, g in zip(2 * scores, gt, strict=True)
            ]
        )
        matching = betti_errors(pred, gt).matching
        return torch.stack([counts[0], strict, counts[1], matching, losses.double()])


def _ranks(values: Tensor) -> np.ndarray:
    from scipy.stats import rankdata

    return rankdata(values.numpy())


def _share(metric: str, chosen: Bool[Tensor, "pairs"]) -> Measurement:
    values = chosen.double()
    return Measurement(metric, values.mean().item(), samples=values.tolist())


def random_scores(
    count: int, size: int, seed: int
) -> tuple[Float[Tensor, "count size size"], Bool[Tensor, "count size size"]]:
    """Smooth masks, and before them scores with smooth noise of a strength that differs by pair."""
    generator = torch.Generator().manual_seed(seed * 1009 + size)
    field, noise = (
        F.avg_pool2d(torch.randn(count, 1, size, size, generator=generator), 3, 1, 1)
        for _ in range(2)
    )
    strength = torch.rand(count, 1, 1, 1, generator=generator)
    return (field + strength * noise)[:, 0], (field > 0)[:, 0]
