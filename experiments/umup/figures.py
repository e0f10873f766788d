"""Figures: loss against learning rate, scales over training, exponents, search cost."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from ritornello.common.reporting import Figure, Results, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = {"sp": "standard", "mup": "μP", "umup": "u-μP"}
_E4M3 = (-9, 8)
_E5M2 = (-16, 15)


def figures(results: Results) -> Iterator[Figure]:
    """One figure for each part that was measured."""
    if not results.select("transfer", "validation_loss").empty:
        yield _transfer(results)
    if not results.select("initialisation", "rms").empty:
        yield _initialisation(results)
    if not results.select("low_precision", "rms").empty:
        yield _scales(results)
        yield _exponents(results)
    if not results.select("search", "best_so_far").empty:
        yield _search(results)


def _transfer(results: Results) -> Figure:
    rows = results.select("transfer", "validation_loss")
    arms = [arm for arm in _NAMES if arm in set(rows["arm"])]
    figure, axes = new_figure(1, len(arms), width=4.0, sharey=True, squeeze=False)
    for axis, arm in zip(axes[0], arms, strict=True):
        for width, group in rows[rows["arm"] == arm].groupby("width"):
            curve = group.groupby("log2_rate")["value"].agg(["mean", "min", "max"])
            axis.plot(curve.index, curve["mean"], marker="o", label=f"width {width:g}")
            axis.fill_between(curve.index, curve["min"], curve["max"], alpha=0.2)
        axis.set(title=_NAMES[arm], xlabel="log₂ learning rate")
        axis.legend()
    axes[0][0].set_ylabel("held-out loss (nats per byte)")
    caption = "Held-out loss against the learning rate by width; mean and range over seeds."
    return Figure("transfer", caption, figure)


def _initialisation(results: Results) -> Figure:
    rows = results.select("initialisation", "rms")
    arms = [arm for arm in _NAMES if arm in set(rows["arm"])]
    figure, axes = new_figure(1, len(arms), width=4.0, sharey=True, squeeze=False)
    for axis, arm in zip(axes[0], arms, strict=True):
        kinds = ("activation", "weight", "weight_gradient")
        _rms_lines(axis, rows[rows["arm"] == arm], kinds, along="width")
        axis.set(title=_NAMES[arm], xlabel="width", xscale="log", yscale="log")
    axes[0][0].set_ylabel("RMS at initialisation")
    return Figure("initialisation", "RMS of every tensor at initialisation by width.", figure)


def _scales(results: Results) -> Figure:
    rows = results.select("low_precision", "rms")
    arms = sorted(set(rows["arm"]))
    figure, axes = new_figure(1, len(arms), width=3.6, sharey=True, squeeze=False)
    for axis, arm in zip(axes[0], arms, strict=True):
        _rms_lines(axis, rows[rows["arm"] == arm], ("weight", "weight_gradient"), along="step")
        axis.set(title=arm, xlabel="step", yscale="log")
    axes[0][0].set_ylabel("RMS")
    return Figure("scales", "RMS of weights and weight gradients over training.", figure)


def _rms_lines(axis: "Axes", rows: pd.DataFrame, kinds: tuple[str, ...], *, along: str) -> None:
    """A line for every tensor, in the colour of its kind."""
    for number, kind in enumerate(kinds):
        lines = rows[rows["tensor"].str.endswith(f" {kind}")]
        for i, (_, group) in enumerate(lines.groupby("tensor")):
            curve = group.groupby(along)["value"].mean()
            label = kind.replace("_", " ") if i == 0 else None
            axis.plot(curve.index, curve, color=f"C{number}", alpha=0.6, label=label)
    axis.legend()


def _exponents(results: Results) -> Figure:
    arms = sorted(set(results.select("low_precision", "rms")["arm"]))
    seed = int(results.select("low_precision", "rms")["seed"].min())
    figure, axes = new_figure(1, len(arms), width=3.6, sharey=True, squeeze=False)
    for axis, arm in zip(axes[0], arms, strict=True):
        file = results.artifacts("low_precision", arm, seed) / "exponents.json"
        if not file.exists():
            continue
        for kind, shares in json.loads(file.read_text()).items():
            axis.plot([int(k) for k in shares], list(shares.values()), label=kind)
        for (low, high), name, colour in ((_E4M3, "E4M3", "C5"), (_E5M2, "E5M2", "C7")):
            axis.axvspan(low, high, alpha=0.12, color=colour, label=name)
        axis.set(title=arm, xlabel="binary exponent")
        axis.legend()
    axes[0][0].set_ylabel("share of elements")
    caption = "Exponents of weights, activations and gradients after training, and FP8's ranges."
    return Figure("exponents", caption, figure)


def _search(results: Results) -> Figure:
    rows = results.select("search", "best_so_far")
    figure, axis = new_figure()
    for (arm, strategy), group in rows.groupby(["arm", "strategy"]):
        curve = group.groupby("run")["value"].mean()
        style = "-" if strategy == "independent" else "--"
        axis.plot(curve.index, curve, style, label=f"{_NAMES.get(arm, arm)}, {strategy}")
    axis.set(xlabel="training runs", ylabel="lowest held-out loss so far")
    axis.legend()
    return Figure("search", "Lowest loss against the number of runs of the search.", figure)
