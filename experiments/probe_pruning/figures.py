"""The figures, drawn from the table and the artifacts alone."""

from collections.abc import Iterator

import numpy as np

from ritornello.common.reporting import Figure, Results, new_figure

_NAMES = {
    "dense": "dense",
    "wanda_sp": "Wanda-sp",
    "flap": "FLAP",
    "ppsp_static": "PPsp, static",
    "pp": "PP, 5 % of samples",
    "pp_two_samples": "PP, 25 % of samples",
    "pp_no_fusion": "PP, no fusion",
    "pp_no_update": "PP, fixed history",
    "full_batch": "full-batch probing",
    "pp_parallel": "PP-Parallel",
}
_PART = "language_model"
# More arms than colours: shapes tell them apart.
_MARKERS = "os^vDP*Xd"


def figures(results: Results) -> Iterator[Figure]:
    """Perplexity, probe size, agreement, importance weights, cost."""
    yield from _perplexity_by_ratio(results)
    yield from _probe_size(results)
    yield from _agreement(results)
    yield from _importance(results)
    yield from _cost(results)


def _mean(results: Results, metric: str, *keys: str):
    rows = results.select(_PART, metric)
    return rows.groupby(["arm", *keys], sort=False)["value"].mean() if len(rows) else None


def _perplexity_by_ratio(results: Results) -> Iterator[Figure]:
    rows = results.select(_PART, "perplexity")
    if rows.empty:
        return
    logs = rows.assign(log=np.log(rows["value"]))
    means = np.exp(logs.groupby(["arm", "ratio"], sort=False)["log"].mean())
    whole = means["dense"].mean() if "dense" in means.index.get_level_values(0) else None
    figure, axes = new_figure()
    for arm in means.index.get_level_values(0).unique():
        if arm == "dense":
            continue
        points = means[arm].sort_index()
        x, y = list(points.index), list(points)
        if whole is not None:
            x, y = [0, *x], [whole, *y]
        axes.plot(x, y, marker="o", label=_NAMES.get(arm, arm))
    axes.set(xlabel="pruning ratio", ylabel="perplexity", yscale="log")
    axes.legend(fontsize=8)
    caption = "Perplexity against the pruning ratio (geometric mean over places), a line per arm."
    yield Figure("perplexity_by_ratio", caption, figure)


def _probe_size(results: Results) -> Iterator[Figure]:
    rows = results.select("probe_size", "perplexity")
    if rows.empty:
        return
    table = rows.pivot_table(index="probe_samples", columns="probe_tokens", values="value")
    figure, axes = new_figure(width=4.5)
    image = axes.imshow(table.to_numpy(), cmap="viridis_r", aspect="auto", origin="lower")
    axes.grid(False)
    axes.set_xticks(range(table.shape[1]), [f"{t:g}" for t in table.columns])
    axes.set_yticks(range(table.shape[0]), [f"{s:g}" for s in table.index])
    for (row, column), value in np.ndenumerate(table.to_numpy()):
        ink = "white" if image.norm(value) > 0.5 else "black"  # small values are bright
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=ink)
    axes.set(xlabel="share of tokens", ylabel="share of samples")
    figure.colorbar(image, label="perplexity")
    yield Figure("probe_size", "Perplexity of Probe Pruning by the size of its probe.", figure)


def _agreement(results: Results) -> Iterator[Figure]:
    means = _mean(results, "jaccard_to_full_batch", "layer")
    if means is None:
        return
    figure, axes = new_figure()
    for arm in means.index.get_level_values(0).unique():
        axes.plot(means[arm].sort_index(), marker=".", label=_NAMES.get(arm, arm))
    axes.set(xlabel="layer", ylabel="Jaccard index", ylim=(0, 1))
    axes.legend(fontsize=8)
    caption = "Kept MLP channels: agreement with full-batch probing on the same inputs, by layer."
    yield Figure("agreement_by_layer", caption, figure)


def _importance(results: Results) -> Iterator[Figure]:
    rows = results.select(_PART, "perplexity", "pp")
    found = []
    for _, row in rows.iterrows():
        place = {"place": row["place"], "ratio": row["ratio"]}
        file = results.artifacts(_PART, "pp", int(row["seed"]), **place) / "importance_weights.npy"
        if file.exists():
            found.append(np.load(file))
    if not found:
        return
    shares = np.mean(found, axis=0)
    figure, axes = new_figure(width=4.5)
    edges = np.linspace(0, 1, len(shares) + 1)
    axes.bar(edges[:-1], shares, width=1 / len(shares), align="edge")
    axes.set(xlabel="weight of the probe, p / (p + h)", ylabel="share of states")
    caption = "How far the fusion trusts the probe: weights over positions, channels and layers."
    yield Figure("importance_weights", caption, figure)


def _cost(results: Results) -> Iterator[Figure]:
    perplexity = _mean(results, "perplexity")
    speed = _mean(results, "forward_seconds")
    flops = _mean(results, "flops_share")
    if perplexity is None or speed is None or flops is None:
        return
    figure, (left, right) = new_figure(columns=2, width=4.8, sharey=True)
    for number, arm in enumerate(perplexity.index):
        marker = _MARKERS[number % len(_MARKERS)]
        name = _NAMES.get(arm, arm)
        left.scatter(flops[arm], perplexity[arm], marker=marker, label=name)
        right.scatter(speed[arm], perplexity[arm], marker=marker)
    left.set(xlabel="FLOPs, share of the dense layers", ylabel="perplexity", yscale="log")
    right.set(xlabel="seconds a batch")
    left.legend(fontsize=7)
    caption = "Perplexity against counted FLOPs and against measured time, probes included."
    yield Figure("cost", caption, figure)
