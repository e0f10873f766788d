"""The figures, drawn from the table alone."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ritornello.common.reporting import Figure, Results, new_figure

NAMES = {
    "hamming": "Hamming MMD",
    "spectrum": "spectrum MMD, k = 5",
    "all_substrings": "all-substrings MMD",
    "one_hot": "one-hot MMD",
    "l1": "L1",
    "l2": "L2",
    "chi_squared": "χ²",
}
# More tests than colours that are told apart easily: shapes help.
_MARKERS = "os^vDP*"
_ALPHA = 0.05


def figures(results: Results) -> Iterator[Figure]:
    """Power by length and by sample size, p-values under H0, distances, audits."""
    yield from power_by(results, "markov", "length", "power_by_length_markov", log=True)
    yield from power_by(results, "language_model", "length", "power_by_length_language_model")
    yield from power_by(results, "language_model", "n_per_prompt", "power_by_sample_size")
    yield from _null_p_values(results)
    yield from distance_matrix(results)
    yield from _audits(results)


def power_by(
    results: Results, part: str, along: str, name: str, *, log: bool = False
) -> Iterator[Figure]:
    """A panel per alternative, a line per test; other coordinates at their largest value."""
    rows = results.select(part, "power")
    if rows.empty or rows[along].nunique() < 2:
        return
    fixed = {}
    for other in {"length", "n_per_prompt"} - {along}:
        if other in rows.columns and rows[other].notna().any():
            fixed[other] = rows[other].max()
            rows = rows[rows[other] == fixed[other]]
    panels = list(rows["alternative"].unique())
    figure, axes = new_figure(columns=len(panels), width=3.0, height=3.2, sharey=True)
    for panel, axis in zip(panels, np.atleast_1d(axes), strict=True):
        here = rows[rows["alternative"] == panel]
        for number, (arm, values) in enumerate(here.groupby("arm", sort=False)):
            line = values.groupby(along)["value"].mean()
            label, marker = NAMES.get(str(arm), str(arm)), _MARKERS[number % len(_MARKERS)]
            axis.plot(line.index, line, marker=marker, ms=4, label=label)
        axis.axhline(_ALPHA, color="grey", lw=0.8, ls=":")
        axis.set(title=panel, xlabel=along.replace("_", " "), ylim=(-0.03, 1.03))
        if log:
            axis.set_xscale("log")
            ticks = sorted(here[along].unique())
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
    np.atleast_1d(axes)[0].set_ylabel("power")
    np.atleast_1d(axes)[-1].legend(fontsize=7)
    where = "".join(f" at {key.replace('_', ' ')} {value:g}" for key, value in fixed.items())
    title = part.replace("_", " ")
    caption = f"Power against {along.replace('_', ' ')} ({title}{where}); dotted: the level."
    yield Figure(name, caption, figure)


def _null_p_values(results: Results) -> Iterator[Figure]:
    rows = results.select("markov", "p_value", alternative="same")
    if rows.empty:
        return
    figure, axes = new_figure()
    for arm, values in rows.groupby("arm", sort=False):
        p = np.sort(np.concatenate([np.asarray(s, float) for s in values["samples"]]))
        axes.step(p, np.arange(1, len(p) + 1) / len(p), label=NAMES.get(str(arm), str(arm)))
    axes.plot([0, 1], [0, 1], color="grey", lw=0.8, ls=":")
    axes.set(xlabel="p-value", ylabel="share at or below", xlim=(0, 1), ylim=(0, 1))
    axes.legend(fontsize=7)
    caption = (
        "p-values when both samples come from the same chains: on the diagonal a test is exact, "
        "below it conservative (counts of long completions have nothing but ties), above it too "
        "eager."
    )
    yield Figure("null_p_values", caption, figure)


def distance_matrix(results: Results) -> Iterator[Figure]:
    """MMD between pools, rows ordered by the second eigenvector of the similarity graph."""
    rows = results.select("distances", "mmd")
    if rows.empty:
        return
    table = rows.pivot_table(index="row", columns="column", values="value", sort=False)
    table = table.loc[:, list(table.index)]
    order = spectral_order(table.to_numpy())
    table = table.iloc[order, order]
    values = table.to_numpy()
    figure, axes = new_figure(width=5.2, height=4.4)
    image = axes.imshow(values, cmap="viridis")
    axes.grid(False)
    names = [str(name).replace("_", " ") for name in table.index]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names)
    for (row, column), value in np.ndenumerate(values):
        dark = value < (values.max() + values.min()) / 2
        colour = "white" if dark else "black"
        axes.text(column, row, f"{value:.3f}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(image, label="MMD² (Hamming)")
    yield Figure("distances", "Distance between what was served, unbiased estimates.", figure)


def spectral_order(distances: np.ndarray) -> np.ndarray:
    """Rows sorted by the Fiedler vector of similarities exp(-distance / largest distance)."""
    positive = np.clip((distances + distances.T) / 2, 0, None)
    similarity = np.exp(-positive / max(float(positive.max()), 1e-12))
    np.fill_diagonal(similarity, 0)
    laplacian = np.diag(similarity.sum(1)) - similarity
    return np.argsort(np.linalg.eigh(laplacian)[1][:, 1])


def _audits(results: Results) -> Iterator[Figure]:
    rows = results.select("audit", "p_value")
    if rows.empty:
        return
    rate = results.select("audit", "rejection_rate").groupby("arm")["value"].mean()
    mmd = results.select("audit", "mmd").groupby("arm")["value"].mean()
    table = pd.DataFrame({"rate": rate, "mmd": mmd}).reindex(rows["arm"].unique())
    figure, (left, right) = new_figure(columns=2, width=3.8, height=2.8, sharey=True)
    places = range(len(table))
    colours = ["#D55E00" if value >= 0.5 else "#0072B2" for value in table["rate"]]
    left.barh(places, table["rate"], color=colours)
    left.axvline(0.5, color="grey", lw=0.8, ls=":")
    left.set_yticks(places, [str(name).replace("_", " ") for name in table.index])
    left.set(xlabel="share of repeats that reject", xlim=(0, 1))
    right.barh(places, table["mmd"], color=colours)
    right.set(xlabel="MMD²")
    caption = "Audited endpoints: flagged (orange) where at least half of the repeats reject."
    yield Figure("audits", caption, figure)
