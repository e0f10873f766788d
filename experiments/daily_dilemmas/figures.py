"""The figures, drawn from the table alone."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ritornello.common.reporting import Figure, Results, new_figure
from ritornello.common.reporting.figures import PALETTE
from ritornello.methods.daily_dilemmas import THEORIES
from ritornello.methods.daily_dilemmas.preference import FEW

_TITLES = {
    "wvs": "World Values Survey",
    "mft": "moral foundations",
    "virtue": "Aristotle's virtues",
    "emotion": "Plutchik's emotions",
    "maslow": "Maslow's needs",
}
_PLAIN = "no_prompt"
_GREY = "#BBBBBB"


def figures(results: Results) -> Iterator[Figure]:
    """Theories, values, steering, the two counts, position bias."""
    for part in results.table["part"].unique():
        yield from _theories(results, part)
    yield from _values(results)
    for part in results.table["part"].unique():
        yield from _steering(results, part)
        yield from _positions(results, part)
    yield from _counts(results)


def _theories(results: Results, part: str) -> Iterator[Figure]:
    rows = results.select(part, "preference", _PLAIN)
    if rows.empty:
        return
    keys = ["theory", "class"]
    table = rows.set_index(keys)[["value"]]
    for name in ("preference_low", "preference_high", "occurrences"):
        own = results.select(part, name, _PLAIN)
        table[name] = own.set_index(keys)["value"] if len(own) else np.nan
    figure, axes = new_figure(1, len(THEORIES), width=3.4, height=4.2)
    for axis, (theory, classes) in zip(axes, THEORIES.items(), strict=True):
        for place, name in enumerate(reversed(classes)):
            if (theory, name) not in table.index:
                continue
            value, low, high, n = (float(v) for v in table.loc[(theory, name)])
            axis.barh(place, value, color=PALETTE[0] if n >= FEW else _GREY)
            if np.isfinite(low):
                axis.plot([low, high], [place, place], color="black", linewidth=1)
        axis.set_yticks(range(len(classes)), list(reversed(classes)), fontsize=7)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set(title=_TITLES[theory], xlim=(-105, 105), xlabel="preference, %")
        axis.set_ylim(-0.7, len(classes) - 0.3)
    yield Figure(
        f"theories_{part}",
        f"Preferences by class of five theories ({part}, no system prompt), with 95 % intervals "
        f"over dilemmas; grey: counted fewer than {FEW} times.",
        figure,
    )


def _values(results: Results, most: int = 24) -> Iterator[Figure]:
    counts = results.select(metric="occurrences", theory="value")
    rows = results.select(metric="preference", theory="value")
    if rows.empty:
        return
    common = counts.groupby("class")["value"].max().nlargest(most).index
    table = rows[rows["class"].isin(common)].pivot_table(
        index=["part", "arm"], columns="class", values="value"
    )[list(common)]
    figure, axes = new_figure(width=9, height=1.6 + 0.5 * len(table))
    image = axes.imshow(table.to_numpy(), cmap="RdBu", vmin=-100, vmax=100, aspect="auto")
    axes.grid(False)
    axes.set_xticks(range(table.shape[1]), list(table.columns), rotation=90, fontsize=7)
    axes.set_yticks(range(table.shape[0]), [f"{p}: {a}" for p, a in table.index], fontsize=7)
    figure.colorbar(image, label="preference, %")
    yield Figure("values", f"Preferences for the {most} most frequent values, by model.", figure)


def _steering(results: Results, part: str) -> Iterator[Figure]:
    rows = results.select(part, "principle_win_rate")
    if rows["arm"].nunique() < 2:
        return
    table = rows.pivot_table(index="principle", columns="arm", values="value", sort=False)
    figure, axes = new_figure(width=7, height=1.2 + 0.4 * len(table))
    shapes = {
        "opposing": ("<", PALETTE[1]),
        _PLAIN: ("o", "black"),
        "supporting": (">", PALETTE[0]),
    }
    places = np.arange(len(table))[::-1]
    for place, row in zip(places, table.to_numpy(), strict=True):
        axes.plot([np.nanmin(row), np.nanmax(row)], [place, place], color=_GREY, zorder=1)
    for arm, (marker, color) in shapes.items():
        if arm in table:
            shift = {"<": -0.12, ">": 0.12}.get(marker, 0.0)
            axes.scatter(
                table[arm], places + shift, marker=marker, color=color, label=arm, zorder=2
            )
    axes.set_yticks(places, [_short(name) for name in table.index], fontsize=7)
    axes.set(xlabel="win rate of the supporting side", xlim=(-0.05, 1.05))
    axes.legend(fontsize=8)
    yield Figure(
        f"steering_{part}",
        f"Share of conflict dilemmas in which the principle's supporting side is chosen ({part}): "
        "without a system prompt and under either steering prompt.",
        figure,
    )


def _positions(results: Results, part: str) -> Iterator[Figure]:
    rows = results.select(part, "acting_log_odds", _PLAIN)
    if rows.empty:
        return
    shown = {f"{row.order} order": np.asarray(row.samples) for row in rows.itertuples()}
    if len(shown) == 2:
        shown["mean of both"] = sum(shown.values()) / 2
    bins = np.histogram_bin_edges(np.concatenate(list(shown.values())), bins=60)
    figure, axes = new_figure()
    for color, (label, odds) in zip(PALETTE, shown.items(), strict=False):
        axes.hist(odds, bins=bins, alpha=0.7, color=color, label=label)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel="log-odds of acting, nats", ylabel="dilemmas")
    axes.legend(fontsize=8)
    yield Figure(
        f"positions_{part}",
        f"Log-odds of acting in the official order (Action 1 is to do) and in the swapped one "
        f"({part}): a preference for a slot moves the two apart, their mean is free of it.",
        figure,
    )


def _counts(results: Results) -> Iterator[Figure]:
    rows = results.select("published", "score_before")
    if rows["arm"].nunique() < 2:
        return
    table: pd.DataFrame = rows.pivot_table(
        index="principle", columns="arm", values="value", sort=False
    )
    figure, axes = new_figure(width=7, height=4.6)
    places = np.arange(len(table))[::-1]
    for place, row in zip(places, table.to_numpy(), strict=True):
        axes.plot([row.min(), row.max()], [place, place], color=_GREY, zorder=1)
    for number, arm in enumerate(table):
        axes.scatter(table[arm], places, color=PALETTE[number], label=f"{arm} count", zorder=2)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(places, [_short(name) for name in table.index], fontsize=7)
    axes.set(xlabel="score without a system prompt")
    axes.legend(fontsize=8)
    yield Figure(
        "counts",
        "GPT-4-turbo without a steering prompt: the published score, which counts selected and "
        "neglected actions alike, and the score of its choices.",
        figure,
    )


def _short(name: str) -> str:
    return name if len(name) <= 48 else name[:47] + "…"
