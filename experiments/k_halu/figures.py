"""The figures, drawn from the table alone."""

from collections.abc import Iterator
from math import comb

import numpy as np

from ritornello.common.reporting import Figure, Results, new_figure
from ritornello.common.reporting.figures import PALETTE
from ritornello.common.statistics.evaluation import cluster_bootstrap

_MODEL = "language_model"
_ARMS = {
    "smollm2_likelihood": "A: likelihood, count given",
    "smollm2_list": "B: written list",
    "smollm2_support": "C: support of each option",
    "lexical": "lexical overlap, count given",
    "minilm": "MiniLM, count given",
}
_COUNTS = (1, 2, 3)


def figures(results: Results) -> Iterator[Figure]:
    """By number of answers, all arms, two kinds of F1, over- and under-selection, cells."""
    yield from _by_count(results)
    yield from _forest(results)
    yield from _parsers(results)
    yield from _two_f1(results)
    yield from _selection(results)
    yield from _slots(results)
    yield from _cells(results)


def _name(arm: str) -> str:
    return _ARMS.get(arm, arm.replace("_", " "))


def _lines(axes, rows, label: str, **style) -> None:
    means = rows.groupby("n_gold")["value"].mean().sort_index()
    axes.plot(means.index, means.to_numpy(), marker="o", label=label, **style)


def _by_count(results: Results) -> Iterator[Figure]:
    rows = results.select(_MODEL, "set_match_by_count", language="en")
    if rows.empty:
        return
    figure, (left, right) = new_figure(columns=2, width=5.2, height=4.0, sharey=True)
    for arm in rows["arm"].unique():
        _lines(left, rows[rows["arm"] == arm], _name(arm))
    threshold = results.select(_MODEL, "threshold_set_match_by_count", language="en")
    if len(threshold):
        _lines(left, threshold, "C: likelihood, no count")
    left.plot(_COUNTS, [1 / comb(5, n) for n in _COUNTS], "k--", lw=1, label="chance, count given")
    left.axhline(1 / 31, color="k", ls=":", lw=1, label="chance, any set")
    left.set(xlabel="right options", ylabel="share of items", title="the whole set must match")
    published = results.select("published", "accuracy_by_count", arm=["gpt35", "gpt4o"])
    for arm in published["arm"].unique():
        _lines(right, published[published["arm"] == arm], f"{arm} (published)", ls="-.")
    for arm in ("noisy_pick", "random_single"):
        picks = results.select("baselines", "any_hit_by_count", arm=arm)
        if len(picks):
            _lines(right, picks, f"{_name(arm)}, any hit")
    strict = results.select("baselines", "set_match_by_count", arm="noisy_judge")
    if len(strict):
        _lines(right, strict, "noisy judge, whole set", color="0.5")
    right.set(xlabel="right options", title="one pick, any right answer counts")
    for axes in (left, right):
        axes.set_xticks(_COUNTS)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)
    caption = (
        "Share of right items by how many options are right. Left: the protocols, on generated "
        "English questions. Right: the published rows rise as one pick under any-hit scoring does; "
        "they are not comparable with the left side."
    )
    yield Figure("accuracy_by_count", caption, figure)


def _forest(results: Results) -> Iterator[Figure]:
    rows = [
        row
        for part in (_MODEL, "baselines")
        for _, row in results.select(part, "set_match").iterrows()
    ]
    if not rows:
        return
    bars: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        bars.setdefault((row["part"], row["arm"], row["language"]), []).extend(row["samples"])
    figure, axes = new_figure(width=7, height=0.32 * len(bars) + 1.8)
    names = []
    for place, ((part, arm, language), samples) in enumerate(reversed(bars.items())):
        mean, low, high = cluster_bootstrap(samples)
        colour = PALETTE[0 if part == _MODEL else 1]
        axes.plot([low, high], [place, place], color=colour, lw=2)
        axes.plot(mean, place, "o", color=colour)
        names.append(f"{_name(arm)} ({language}, n={len(samples)})")
    axes.axvline(0.16, color="k", ls="--", lw=1)
    axes.text(0.165, len(bars) - 0.6, "chance, count given", fontsize=7)
    axes.set_yticks(range(len(bars)), names, fontsize=8)
    # The line's name stands above the topmost arm: inside the axes, however few arms there are.
    axes.set(xlabel="set match, 95 % interval", xlim=(-0.02, 1.02), ylim=(-0.6, len(bars) - 0.2))
    caption = "Share of items whose whole set is right, every arm, with the chance of protocol A."
    yield Figure("all_arms", caption, figure)


def _parsers(results: Results) -> Iterator[Figure]:
    ours = results.select(metric="set_match", language="en").groupby("arm")["value"].mean()
    official = results.select(metric="set_match_official", language="en")
    if official.empty:
        return
    official = official.groupby("arm")["value"].mean()
    figure, axes = new_figure(width=5, height=4.4)
    axes.plot([0, 1], [0, 1], "k:", lw=1)
    for arm in ours.index:
        axes.scatter(ours[arm], official[arm], color=PALETTE[0])
        if abs(ours[arm] - official[arm]) > 0.02:
            axes.annotate(_name(arm), (ours[arm], official[arm]), fontsize=8, ha="right")
    axes.set(xlabel="set match, our reading", ylabel="set match, official reading")
    caption = (
        "Each arm under both readings of its answers. An oracle that puts a blank before its "
        "commas is always right and scores nothing officially."
    )
    yield Figure("two_readings", caption, figure)


def _two_f1(results: Results) -> Iterator[Figure]:
    official = results.select(metric="official_f1", language="en")
    items = results.select(metric="f1", language="en")
    if official.empty:
        return
    x = items.groupby("arm")["value"].mean()
    y = official.groupby("arm")["value"].mean()
    figure, axes = new_figure(width=5, height=4.4)
    axes.plot([0, 1], [0, 1], "k:", lw=1)
    for number, arm in enumerate(x.index):
        axes.scatter(x[arm], y[arm], marker="os^vDP*Xd<>hH8p"[number % 15], label=_name(arm))
    axes.set(xlabel="mean F1 of an item", ylabel="official F1, macro over option places")
    axes.legend(fontsize=6, ncols=2)
    caption = (
        "The official F1 averages over option places: whoever prefers a place falls far below the "
        "diagonal, without having answered worse."
    )
    yield Figure("official_and_item_f1", caption, figure)


def _selection(results: Results) -> Iterator[Figure]:
    over = results.select(metric="over", language="en").groupby("arm", sort=False)["value"].mean()
    under = results.select(metric="under", language="en").groupby("arm", sort=False)["value"].mean()
    if over.empty:
        return
    figure, axes = new_figure(width=6.5, height=0.3 * len(over) + 1.8)
    places = np.arange(len(over))[::-1]
    axes.barh(places, over.to_numpy(), color="C1", label="picked too many")
    axes.barh(places, -under[over.index].to_numpy(), color="C0", label="missed")
    axes.axvline(0, color="k", lw=0.8)
    axes.set_yticks(places, [_name(arm) for arm in over.index], fontsize=8)
    axes.set(xlabel="options per item")
    axes.legend(fontsize=8)
    yield Figure("over_and_under_selection", "Options picked wrongly and missed, per item.", figure)


def _slots(results: Results) -> Iterator[Figure]:
    rows = results.select(_MODEL, "slot_share", language="en")
    if rows.empty:
        return
    figure, axes = new_figure()
    for arm in rows["arm"].unique():
        shares = rows[rows["arm"] == arm].groupby("slot")["value"].mean()
        axes.plot(shares.index, shares.to_numpy(), marker="o", label=_name(arm))
    axes.set(xlabel="option place", ylabel="share of items that pick it", ylim=(0, None))
    axes.set_xticks(range(1, 6))
    axes.legend(fontsize=8)
    yield Figure("picked_places", "How often each place is picked, whatever stands there.", figure)


def _cells(results: Results) -> Iterator[Figure]:
    shown = [
        ("GPT-4o (published)", results.select("published", "accuracy_by_cell", arm="gpt4o")),
        (
            "SmolLM2, protocol A (item F1)",
            results.select(_MODEL, "f1_by_cell", arm="smollm2_likelihood", language="en"),
        ),
        (
            "lexical overlap (item F1)",
            results.select("baselines", "f1_by_cell", arm="lexical", language="en"),
        ),
    ]
    shown = [(title, rows) for title, rows in shown if len(rows)]
    if not shown:
        return
    figure, axes = new_figure(columns=len(shown), width=3.6, height=3.6, squeeze=False)
    for place, (title, rows) in zip(axes[0], shown, strict=True):
        table = rows.pivot_table(index="domain", columns="polarity", values="value")
        image = place.imshow(table.to_numpy(), vmin=0, vmax=1, cmap="viridis", aspect="auto")
        place.grid(False)
        place.set_xticks(range(table.shape[1]), table.columns, fontsize=8)
        place.set_yticks(range(table.shape[0]), table.index)
        place.set_title(title, fontsize=9)
        for (row, column), value in np.ndenumerate(table.to_numpy()):
            place.text(column, row, f"{value:.2f}", ha="center", va="center", color="w", fontsize=8)
    figure.colorbar(image, ax=axes[0].tolist(), shrink=0.8)
    caption = "By domain and polarity. With few questions a cell, differences mean little."
    yield Figure("domains_and_polarity", caption, figure)
