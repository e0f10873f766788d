"""The figures, drawn from the table and the artifacts alone."""

from collections.abc import Iterator

import numpy as np
import torch

from ritornello.common.reporting import Figure, Results, hide_ticks, new_figure
from ritornello.methods.topograph import betti_errors, critical_regions, diu

NAMES = {
    "dice": "Dice",
    "cldice": "Dice + clDice",
    "hutopo": "HuTopo",
    "betti_matching": "Betti matching",
    "mosin": "Mosinska et al.",
    "topograph": "Topograph",
    "topograph_weak": "Topograph, α = 0.1",
    "topograph_strong": "Topograph, α = 1",
    "topograph_4": "Topograph, 4-connected",
    "topograph_noise": "Topograph, noisy threshold",
    "topograph_scipy": "Topograph, no compiler",
    "published": "published procedure",
}
_ALPHAS = {"dice": 0.0, "topograph_weak": 0.1, "topograph": 0.3, "topograph_strong": 1.0}
# True negatives, false positives, false negatives, true positives.
_CLASS_COLOURS = np.array([[0.12, 0.12, 0.14], [0.90, 0.62, 0.0], [0.34, 0.71, 0.91], [1, 1, 1]])
_CRITICAL_COLOUR = np.array([0.84, 0.10, 0.11])


def figures(results: Results) -> Iterator[Figure]:
    """Error maps, trade-off, errors by kind, time by size, regions against ξ, what DIU sees."""
    yield from _error_maps(results)
    yield from _trade_off(results)
    yield from _error_kinds(results)
    yield from _time_by_size(results)
    yield from _regions_against_diu(results)
    yield _same_betti_numbers()


def overlay(pred: np.ndarray, gt: np.ndarray) -> np.ndarray:
    """The four-class image in colours, critical regions in red, (height, width, 3)."""
    colours = _CLASS_COLOURS[pred.astype(int) + 2 * gt.astype(int)]
    regions, _ = critical_regions(torch.from_numpy(pred), torch.from_numpy(gt))
    colours[regions.numpy() >= 0] = _CRITICAL_COLOUR
    return colours


def _error_maps(results: Results, rows: int = 4) -> Iterator[Figure]:
    cells = results.select("segmentation", "diu")
    arms = [a for a in NAMES if a in set(cells["arm"]) and a in ("dice", "cldice", "topograph")]
    if not arms or cells.empty:
        return
    seed = int(cells["seed"].min())
    files = {arm: results.artifacts("segmentation", arm, seed) / "shown.npz" for arm in arms}
    if not all(file.exists() for file in files.values()):
        return
    shown = {arm: dict(np.load(file)) for arm, file in files.items()}
    first = shown[arms[0]]
    rows = min(rows, len(first["images"]))
    figure, axes = new_figure(rows, 2 + len(arms), width=2.0, height=2.1, squeeze=False)
    for row in range(rows):
        gt = first["masks"][row] > 0
        axes[row, 0].imshow(first["images"][row].astype(np.float32), cmap="gray")
        axes[row, 1].imshow(gt, cmap="gray")
        for column, arm in enumerate(arms):
            pred = shown[arm]["predicted"][row] > 0
            axes[row, 2 + column].imshow(overlay(pred, gt))
            error = int(diu(torch.from_numpy(pred), torch.from_numpy(gt)).total)
            axes[row, 2 + column].set_xlabel(f"ξ = {error}", fontsize=8)
    for axis, title in zip(axes[0], ["image", "label", *(NAMES[a] for a in arms)], strict=True):
        axis.set_title(title, fontsize=9)
    hide_ticks(axes)
    caption = (
        "Test images with much foreground. White: right foreground; orange: false positive; blue: "
        "false negative; red: critical regions, which change the topology; ξ of each prediction "
        "below."
    )
    yield Figure("error_maps", caption, figure)


def _trade_off(results: Results) -> Iterator[Figure]:
    means = _means(results, ("diu", "dice"))
    if means is None:
        return
    figure, axes = new_figure(width=5.5)
    curve = [arm for arm in _ALPHAS if arm in means.index]
    points = means.loc[curve]
    axes.plot(points["dice"], points["diu"], marker="o", label="Topograph, growing α")
    for arm in curve:
        axes.annotate(
            f"α = {_ALPHAS[arm]:g}",
            tuple(means.loc[arm, ["dice", "diu"]]),
            xytext=(5, 5),
            textcoords="offset points",
            fontsize=8,
        )
    for arm, marker in zip(("cldice", "hutopo", "betti_matching"), "s^D", strict=True):
        if arm in means.index:
            axes.plot(*means.loc[arm, ["dice", "diu"]], marker=marker, ls="", label=NAMES[arm])
    axes.set(xlabel="Dice score", ylabel="DIU (lower is better)")
    axes.legend(fontsize=8)
    caption = "Topology against overlap, means over seeds and test images: what each weight buys."
    yield Figure("diu_against_dice", caption, figure)


def _means(results: Results, metrics: tuple[str, ...]):
    rows = results.select("segmentation")
    rows = rows[rows["metric"].isin(metrics)]
    if rows.empty:
        return None
    return rows.pivot_table(index="arm", columns="metric", values="value")


def _error_kinds(results: Results) -> Iterator[Figure]:
    kinds = {
        "diu_merged_components": "components merged or split",
        "diu_missing_or_false_components": "components missing or false",
        "diu_merged_background": "loops opened or closed",
        "diu_missing_or_false_loops": "holes missing or false",
    }
    means = _means(results, tuple(kinds))
    if means is None:
        return
    means = means.reindex([arm for arm in NAMES if arm in means.index])
    figure, axes = new_figure(height=0.35 * len(means) + 1.4)
    left = np.zeros(len(means))
    for metric, label in kinds.items():
        axes.barh([NAMES[a] for a in means.index], means[metric], left=left, label=label)
        left += means[metric].to_numpy()
    axes.invert_yaxis()
    axes.set(xlabel="DIU an image")
    axes.legend(fontsize=7, ncols=2, loc="lower center", bbox_to_anchor=(0.45, 1.0))
    yield Figure("error_kinds", "What the errors are: the four parts of ξ, by objective.", figure)


def _time_by_size(results: Results) -> Iterator[Figure]:
    rows = results.select("loss_time", "loss_seconds")
    if rows.empty:
        return
    means = rows.pivot_table(index="size", columns="arm", values="value")
    figure, axes = new_figure()
    for arm in (a for a in NAMES if a in means):
        axes.plot(means.index**2, 1000 * means[arm], marker="o", label=NAMES[arm])
    axes.set(xlabel="pixels", ylabel="milliseconds", xscale="log", yscale="log")
    axes.legend(fontsize=8)
    caption = (
        "Forward and backward of each loss on one image, one thread: a straight line is linear."
    )
    yield Figure("time_by_size", caption, figure)


def _regions_against_diu(results: Results) -> Iterator[Figure]:
    rows = results.select("guarantee", "missed", "padded_8")
    files = [results.artifacts("guarantee", "padded_8", int(s)) / "pairs.npy" for s in rows["seed"]]
    files = [file for file in files if file.exists()]
    if not files:
        return
    table = np.concatenate([np.load(file) for file in files], axis=1)
    count, strict, published, _, loss = table
    figure, (left, middle, right) = new_figure(columns=3, width=3.6)
    for axes, x, y, label in (
        (left, strict, count, "critical regions"),
        (right, strict[published >= 0], published[published >= 0], "published count"),
    ):
        (xs, ys), sizes = _tally(x, y)
        axes.scatter(xs, ys, s=6 + 30 * np.log10(sizes), alpha=0.6)
        top = max(xs.max(), ys.max())
        axes.plot([0, top], [0, top], color="gray", lw=0.8)
        axes.set(xlabel="exact ξ", ylabel=label)
    middle.scatter(strict, loss, s=4, alpha=0.3)
    middle.set(xlabel="exact ξ", ylabel="L_CG of the scores")
    caption = (
        "Random pairs of masks. Left: no critical region ever means ξ = 0. Middle: the loss "
        "against ξ. Right: the published count against the exact value. Area: how many pairs."
    )
    yield Figure("regions_against_diu", caption, figure)


def _tally(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.unique(np.stack([x, y]), axis=1, return_counts=True)


def _same_betti_numbers() -> Figure:
    """Two predictions with the label's Betti numbers: one right, one wrong everywhere."""
    gt = np.zeros((16, 16), dtype=bool)
    gt[2:8, 2:8] = True
    gt[4:6, 4:6] = False
    gt[11:14, 2:6] = True
    moved = np.roll(gt, (0, 1), axis=(0, 1))
    elsewhere = gt[:, ::-1].copy()
    figure, axes = new_figure(1, 3, width=2.6, height=2.9)
    axes[0].imshow(gt, cmap="gray")
    axes[0].set_title("label", fontsize=9)
    label = torch.from_numpy(gt)
    for axis, pred in zip(axes[1:], (moved, elsewhere), strict=True):
        errors, strict = (
            betti_errors(torch.from_numpy(pred), label),
            diu(torch.from_numpy(pred), label),
        )
        axis.imshow(overlay(pred, gt))
        axis.set_title(
            f"Betti error {int(errors.betti_0 + errors.betti_1)}, "
            f"matching {int(errors.matching)}, ξ = {int(strict.total)}",
            fontsize=9,
        )
    hide_ticks(axes)
    caption = (
        "Betti numbers do not see where a feature lies: both predictions have those of the label. "
        "A small shift is no error for ξ; features elsewhere are."
    )
    return Figure("same_betti_numbers", caption, figure)
