"""The figures of the Magpie reproduction."""

import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ritornello.common.jsonl import read_jsonl
from ritornello.common.reporting import Figure, Results, new_figure


def figures(results: Results) -> Iterator[Figure]:
    """Every figure whose part was measured."""
    parts = set(results.table["part"])
    if "templates" in parts:
        yield from _rates(results)
        yield from _trade_off(results)
        yield from _map(results)
    if "toy_world" in parts:
        yield from _extraction(results)
    if "pipeline" in parts:
        yield from _data_set(results)
    if "decoding" in parts:
        yield from _decoding(results)


def _rates(results: Results) -> Iterator[Figure]:
    rows = results.select("templates")
    arms = list(dict.fromkeys(rows["arm"]))
    figure, axes = new_figure(width=8)
    for offset, metric in enumerate(("natural_stop", "request", "mathematical")):
        values = [rows[(rows["arm"] == a) & (rows["metric"] == metric)]["value"] for a in arms]
        means = [v.mean() for v in values]
        spread = [[m - v.min(), v.max() - m] for m, v in zip(means, values, strict=True)]
        axes.bar(
            np.arange(len(arms)) + 0.27 * (offset - 1),
            means,
            0.26,
            yerr=np.transpose(spread),
            label=metric.replace("_", " "),
        )
    axes.set_xticks(range(len(arms)), [a.replace("_", "\n") for a in arms])
    axes.set_ylabel("share of sampled queries")
    axes.legend()
    caption = "What a model writes after each beginning: mean over seeds, bars from least to most."
    yield Figure("queries_by_template", caption=caption, figure=figure)


def _trade_off(results: Results) -> Iterator[Figure]:
    table = results.select("templates").pivot_table(index="arm", columns="metric", values="value")
    figure, axes = new_figure()
    axes.scatter(table["min_neighbor_distance"], table["request"])
    for arm, row in table.iterrows():
        axes.annotate(arm, (row["min_neighbor_distance"], row["request"]), fontsize=8)
    axes.set_xlabel("mean minimum neighbour distance (squared L2)")
    axes.set_ylabel("share of requests")
    caption = "Diversity against the share of queries that look like a user's request."
    yield Figure("diversity_and_quality", caption=caption, figure=figure)


def _map(results: Results) -> Iterator[Figure]:
    """t-SNE of the sentence embeddings of all arms, seed by seed in one picture."""
    from sklearn.manifold import TSNE

    rows = results.select("templates", "request")
    found = [
        (row.arm, np.load(path))
        for row in rows.itertuples()
        if (path := results.artifacts("templates", row.arm, row.seed) / "embeddings.npy").exists()
    ]
    if sum(len(points) for _, points in found) < 10:
        return
    points = np.concatenate([points for _, points in found])
    perplexity = min(20.0, (len(points) - 1) / 3)
    places = TSNE(random_state=0, perplexity=perplexity, init="pca").fit_transform(points)
    figure, axes = new_figure(width=7, height=5)
    labels = np.concatenate([[arm] * len(points) for arm, points in found])
    for arm in dict.fromkeys(labels):
        axes.scatter(*places[labels == arm].T, s=14, label=arm)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(fontsize=8)
    yield Figure(
        "embedding_map", caption="Sentence embeddings of the queries (t-SNE).", figure=figure
    )


def _extraction(results: Results) -> Iterator[Figure]:
    rows = results.select("toy_world", "total_variation")
    arms = list(dict.fromkeys(rows["arm"]))
    figure, axes = new_figure(1, len(arms), width=2.6, height=2.8, squeeze=False, sharey=True)
    for axis, arm in zip(axes[0], arms, strict=True):
        seed = int(rows[rows["arm"] == arm]["seed"].iloc[0])
        path = results.artifacts("toy_world", arm, seed) / "counts.npz"
        if not path.exists():
            continue
        arrays = np.load(path)
        order = np.argsort(-arrays["truth"])
        share = arrays["counts"] / max(1, arrays["counts"].sum())
        axis.plot(arrays["truth"][order], label="true")
        axis.plot(share[order], ".", label="extracted")
        axis.set_title(arm.replace("_", " "), fontsize=9)
        axis.set_xlabel("query by rank")
    axes[0][0].set_ylabel("share")
    axes[0][0].legend(fontsize=8)
    caption = "Toy world: share of each query among the texts that are queries, against the truth."
    yield Figure("toy_extraction", caption=caption, figure=figure)


def _data_set(results: Results) -> Iterator[Figure]:
    rows = results.select("pipeline", "kept_share")
    folders = [
        results.artifacts("pipeline", row.arm, row.seed) / "data" for row in rows.itertuples()
    ]
    folder = next((place for place in folders if (place / "stats.json").exists()), None)
    if folder is None:
        return
    yield from _tags(json.loads((folder / "stats.json").read_text())["tags"])
    yield from _lengths(read_jsonl(folder / "final.jsonl"))


def _tags(tags: Mapping[str, Mapping[str, int]]) -> Iterator[Figure]:
    figure, axes = new_figure(1, max(1, len(tags)), width=3.4, squeeze=False)
    for axis, (name, histogram) in zip(axes[0], tags.items(), strict=False):
        axis.barh(list(histogram), list(histogram.values()))
        axis.set_title(name.replace("_", " "), fontsize=9)
        axis.tick_params(axis="y", labelsize=7)
    caption = "Labels of the kept queries; those of a likelihood tagger are no judge's ratings."
    yield Figure("tags", caption=caption, figure=figure)


def _lengths(rows: Sequence[Mapping[str, str]]) -> Iterator[Figure]:
    figure, axes = new_figure(1, 2, width=3.2)
    for axis, name in zip(axes, ("instruction", "response"), strict=True):
        axis.hist([len(row[name]) for row in rows], bins=12)
        axis.set_xlabel(f"{name} length (characters)")
    axes[0].set_ylabel("rows")
    caption = "Lengths of the final queries and answers."
    yield Figure("lengths", caption=caption, figure=figure)


def _decoding(results: Results) -> Iterator[Figure]:
    metrics = ("input_quality", "difficulty", "min_neighbor_distance")
    figure, panels = new_figure(1, len(metrics), width=9, squeeze=False)
    for axes, metric in zip(panels[0], metrics, strict=True):
        rows = results.select("decoding", metric)
        for top_p, own in rows.groupby("top_p"):
            means = own.groupby("temperature")["value"].mean()
            axes.plot(means.index, means, "o-", label=f"top-p {top_p:g}")
        axes.set_xlabel("temperature")
        axes.set_title(metric.replace("_", " "), fontsize=9)
    panels[0][-1].legend(fontsize=8)  # ratings may be missing, distances never are
    caption = (
        "Quality and difficulty of the queries as the judge rates them (1 to 5) and their mean "
        "minimum neighbour distance, by temperature and nucleus."
    )
    yield Figure("decoding_grid", caption=caption, figure=figure)
