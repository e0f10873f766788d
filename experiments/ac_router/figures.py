"""The figures, drawn from the table and the arrays that cells left."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ritornello.common.reporting import Figure, Results, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def figures(results: Results) -> Iterator[Figure]:
    """Those whose part was measured."""
    parts = set(results.table["part"])
    if "identification" in parts:
        yield _accuracy(results)
        yield _weights(results)
    if "regression" in parts:
        yield _errors(results)
        yield _confusion(results)
        yield _tokens(results)
    for part in sorted(parts - {"identification", "cost"}):
        yield _curves(results, part)
        yield _routing(results, part)
        if not results.select(part, "perplexity").empty:
            yield _perplexity(results, part)
        if results.select(part, "accuracy").empty:
            yield _loads(results, part)
        else:
            caption = "accuracy on clean, attacked and shifted test images."
            yield _accuracies(results, part, "accuracy", "attack", caption)
        if not results.select(part, "fine_tuned_accuracy").empty:
            caption = "accuracy on labelled texts after fine-tuning on each set."
            yield _accuracies(results, part, "fine_tuned_accuracy", "task", caption)


def _name(part: str) -> str:
    return part.replace("_", " ").capitalize()


def _arms(rows: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(rows["arm"]))


def _lines(axes: "Axes", rows: pd.DataFrame, along: str) -> None:
    """One line per arm: mean over seeds, and a band from the lowest to the highest seed."""
    for arm in _arms(rows):
        grouped = rows[rows["arm"] == arm].groupby(along)["value"]
        mean = grouped.mean()
        axes.plot(mean.index, mean.to_numpy(), marker="o", markersize=3, label=arm)
        axes.fill_between(mean.index, grouped.min(), grouped.max(), alpha=0.15)
    axes.set_xlabel(along)
    axes.legend()


def _bars(axes: "Axes", rows: pd.DataFrame, title: str) -> None:
    arms = _arms(rows)
    values = [rows[rows["arm"] == arm]["value"] for arm in arms]
    axes.bar(arms, [v.mean() for v in values], color="#56B4E9")
    for place, v in enumerate(values):
        axes.plot([place] * len(v), v, "k.", markersize=4)
    axes.set_title(title)
    axes.tick_params(axis="x", rotation=30)


def _accuracy(results: Results) -> Figure:
    figure, axes = new_figure()
    rows = results.select("identification", "accuracy")
    _lines(axes, rows, "step")
    axes.set_ylabel("points in their own cluster")
    axes.set_xticks(sorted(rows["step"].unique()))
    caption = "Identification: accuracy after each re-estimation of the weights; bands span seeds."
    return Figure("identification_accuracy", caption, figure)


def _weights(results: Results) -> Figure:
    rows = results.select("identification", arm="own_metric")
    rows = rows if len(rows) else results.select("identification")
    arm, seed = rows.iloc[0]["arm"], int(rows["seed"].min())
    arrays = np.load(results.artifacts("identification", arm, seed) / "weights.npz")
    figure, axes = new_figure()
    image = axes.imshow(arrays["weights"], aspect="auto", cmap="viridis")
    clusters, features = np.nonzero(arrays["tight"])
    axes.plot(features, clusters, "r.", markersize=6, label="truly tight")
    axes.set_xlabel("feature")
    axes.set_ylabel("cluster")
    axes.grid(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1))
    figure.colorbar(image, label="weight")
    caption = f"Feature weights found by {arm}, seed {seed}; dots mark the truly tight features."
    return Figure("weight_heat_map", caption, figure)


def _errors(results: Results) -> Figure:
    figure, axes = new_figure(columns=3, width=3.4)
    panels = (("test_mse", "test error"), ("noisy_mse", "error on noisy tokens"))
    for place, (metric, title) in enumerate(panels):
        _bars(axes[place], results.select("regression", metric), title)
    agreement = results.select("regression", "nmi")
    last = agreement[agreement["layer"] == agreement["layer"].max()]
    _bars(axes[2], last, "NMI(expert, cluster), last layer")
    caption = "Regression: mean over seeds (bars) and every seed (dots)."
    return Figure("regression_errors", caption, figure)


def _confusion(results: Results) -> Figure:
    rows = results.select("regression")
    arms, seed = _arms(rows), int(rows["seed"].min())
    figure, axes = new_figure(columns=len(arms), width=2.6, height=2.8, squeeze=False)
    for place, arm in enumerate(arms):
        table = np.load(results.artifacts("regression", arm, seed) / "routing.npz")["confusion"]
        axes[0, place].imshow(table / table.sum(0, keepdims=True).clip(1), vmin=0, vmax=1)
        axes[0, place].set(title=arm, xlabel="cluster", ylabel="expert")
        axes[0, place].grid(False)
    caption = "Which expert (rows) takes the tokens of each cluster (columns), last layer."
    return Figure("expert_cluster_confusion", caption, figure)


def _tokens(results: Results) -> Figure:
    """t-SNE of the same test tokens, coloured by each arm's expert."""
    from sklearn.manifold import TSNE

    rows = results.select("regression")
    arms, seed = _arms(rows), int(rows["seed"].min())
    figure, axes = new_figure(columns=len(arms), width=2.6, height=2.8, squeeze=False)
    places = None
    for column, arm in enumerate(arms):
        arrays = np.load(results.artifacts("regression", arm, seed) / "routing.npz")
        if places is None:
            perplexity = min(30, len(arrays["tokens"]) // 4)
            places = TSNE(random_state=0, perplexity=perplexity).fit_transform(arrays["tokens"])
        axes[0, column].scatter(*places.T, c=arrays["experts"], cmap="tab10", s=4)
        axes[0, column].set(title=arm, xticks=[], yticks=[])
    caption = "t-SNE of test tokens, coloured by the expert of the last layer."
    return Figure("tokens_by_expert", caption, figure)


def _curves(results: Results, part: str) -> Figure:
    figure, axes = new_figure()
    _lines(axes, results.select(part, "train_loss"), "step")
    axes.set_ylabel("training loss")
    caption = f"{_name(part)}: training loss, mean over seeds; bands span seeds."
    return Figure(f"{part}_training_curves", caption, figure)


def _routing(results: Results, part: str) -> Figure:
    """Evenness of the load and, where it was measured, stability between layers."""
    metrics = [m for m in ("load_entropy", "stability") if len(results.select(part, m))]
    figure, axes = new_figure(columns=len(metrics), width=4.0, squeeze=False)
    names = {"load_entropy": "entropy of the load / log E", "stability": "pairs that flip"}
    for place, metric in enumerate(metrics):
        _lines(axes[0, place], results.select(part, metric), "layer")
        axes[0, place].set_ylabel(names[metric])
    caption = "Load of the experts (1 is even) and share of token pairs that flip between layers."
    return Figure(f"{part}_routing", caption, figure)


def _loads(results: Results, part: str) -> Figure:
    """The share of each expert in the last layer, experts sorted by it."""
    rows = results.select(part)
    figure, axes = new_figure()
    for arm in _arms(rows):
        seeds = sorted(rows[rows["arm"] == arm]["seed"].unique())
        shares = [
            np.sort(np.load(results.artifacts(part, arm, int(s)) / "routing.npz")["load"][-1])[::-1]
            for s in seeds
        ]
        axes.step(range(len(shares[0])), np.mean(shares, axis=0), where="mid", label=arm)
    axes.axhline(1 / len(shares[0]), color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="expert, by falling load", ylabel="share of the tokens", ylim=(0, None))
    axes.legend()
    caption = "Load of the experts of the last layer, mean over seeds; dotted: even."
    return Figure(f"{part}_load", caption, figure)


def _perplexity(results: Results, part: str) -> Figure:
    figure, axes = new_figure(columns=2, width=3.6)
    _bars(axes[0], results.select(part, "perplexity"), "test perplexity")
    attacked = results.select(part, "attacked_perplexity")
    _bars(axes[1], attacked, "after word swaps")
    for panel in axes:
        low = min(bar.get_height() for bar in panel.patches)
        panel.set_ylim(bottom=0.9 * low)
    caption = f"{_name(part)}: test perplexity, clean and attacked (axes do not start at 0)."
    return Figure(f"{part}_perplexity", caption, figure)


def _accuracies(results: Results, part: str, metric: str, along: str, caption: str) -> Figure:
    """A group of bars, one per arm, for each test set or attack."""
    rows = results.select(part, metric)
    tests = list(dict.fromkeys(rows[along]))
    figure, axes = new_figure()
    arms = _arms(rows)
    for number, arm in enumerate(arms):
        means = rows[rows["arm"] == arm].groupby(along)["value"].mean()
        places = np.arange(len(tests)) + (number - (len(arms) - 1) / 2) * 0.8 / len(arms)
        axes.bar(places, means.reindex(tests), width=0.8 / len(arms), label=arm)
    axes.set_xticks(range(len(tests)), tests, rotation=20)
    axes.set_ylabel("accuracy")
    axes.legend()
    return Figure(f"{part}_{metric}", f"{_name(part)}: {caption}", figure)
