"""Figures of ARM's reproduction, drawn from the table and the kept arrays."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ritornello.common.reporting import Figure, Results, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def figures(results: Results) -> Iterator[Figure]:
    """Accuracy by strategy, cost by strategy, error by cluster, reconstructions."""
    for draw in (_accuracy, _cost, _clusters, _reconstruction):
        figure = draw(results)
        if figure is not None:
            yield figure


def _accuracy(results: Results) -> Figure | None:
    rows = results.select("transfer", "accuracy")
    if rows.empty:
        return None
    figure, axes = new_figure()
    if rows.labelled.nunique() > 1:
        _lines(axes, rows, "labelled")
        axes.set(xscale="log", xlabel="labelled images", ylabel="test accuracy")
    else:
        table = rows.pivot_table("value", "arm", "seed", sort=False)
        places = np.arange(len(table))
        axes.bar(places, table.mean(axis=1), color="#56B4E9")
        for seed in table.columns:
            axes.plot(places, table[seed], "k.", alpha=0.6)
        axes.set_xticks(places, table.index, rotation=20)
        axes.set(ylabel="test accuracy")
    caption = "Test accuracy after fine-tuning, per strategy; means over seeds (dots: each seed)."
    return Figure("accuracy_by_strategy", caption, figure)


def _cost(results: Results) -> Figure | None:
    rows = results.select("cost", "step_ms")
    if rows.empty:
        return None
    figure, axes = new_figure()
    table = rows.pivot_table("value", "arm", "seed", sort=False)
    axes.barh(table.index, table.mean(axis=1), color="#56B4E9")
    axes.set(xlabel="ms a training step")
    caption = "Time of one training step per strategy, same encoder, images and batch."
    return Figure("step_time_by_strategy", caption, figure)


def _clusters(results: Results) -> Figure | None:
    rows = results.select("transfer", "cluster_error")
    if rows.empty:
        return None
    figure, axes = new_figure()
    _lines(axes, rows, "cluster")
    axes.set(xlabel="predicted cluster", ylabel="squared error / variance")
    caption = "Prediction error of each cluster on test images, relative to the cluster's variance."
    return Figure("error_by_cluster", caption, figure)


def _lines(axes: "Axes", rows: pd.DataFrame, along: str) -> None:
    """A line for every arm: means over seeds."""
    for arm, group in rows.groupby("arm", sort=False):
        means = group.groupby(along)["value"].mean()
        axes.plot(means.index, means.values, marker="o", label=arm)
    axes.legend()


def _reconstruction(results: Results) -> Figure | None:
    rows = results.select("transfer", "accuracy")
    if rows.empty:
        return None
    path = results.artifacts("transfer", "arm", int(rows.seed.min())) / "reconstruction.npz"
    if not path.is_file():
        return None
    arrays = np.load(path)
    count = len(arrays["truth"])
    figure, axes = new_figure(3, count, width=1.2, height=1.3)
    for row, name in enumerate(("context", "prediction", "truth")):
        for column in range(count):
            image = arrays[name][column].transpose(1, 2, 0)
            axes[row, column].imshow(image, cmap="gray", vmin=-1, vmax=1)
            axes[row, column].set_axis_off()
        axes[row, 0].set_title(name, fontsize=8)
    caption = (
        "First cluster (context), clusters predicted from the true ones before them, and truth."
    )
    return Figure("reconstruction", caption, figure)
