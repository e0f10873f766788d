"""Figures of the SuperCorrect study, drawn from the table of measurements alone."""

from collections.abc import Iterator

import pandas as pd

from ritornello.common.reporting import Figure, Results, new_figure

PART = "modular"
KINDS = ("seen", "withheld", "bottleneck")
PROTOCOLS = ("instruction", "native", "few_shot")


def figures(results: Results) -> Iterator[Figure]:
    """Every figure whose measurements are there."""
    for draw in (_accuracy, _verification, _gains, _repeats, _margins, _protocols):
        drawn = draw(results)
        if drawn is not None:
            yield drawn


def _arms(rows: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(rows["arm"]))


def _grouped_bars(axes, rows: pd.DataFrame, column: str, names: tuple[str, ...]) -> None:
    """One group per arm, one bar per name: the mean over seeds, whiskers from least to most."""
    arms = _arms(rows)
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        values = rows[rows[column] == name].groupby("arm")["value"]
        mean, low, high = (getattr(values, how)().reindex(arms) for how in ("mean", "min", "max"))
        x = [index + (place - (len(names) - 1) / 2) * width for index in range(len(arms))]
        axes.bar(x, mean, width, label=name, yerr=[mean - low, high - mean], capsize=2)
    axes.set_xticks(range(len(arms)), [arm.replace("_", "\n") for arm in arms])
    axes.legend()


def _accuracy(results: Results) -> Figure | None:
    rows = results.select(PART, "accuracy", kind=list(KINDS))
    if rows.empty:
        return None
    figure, axes = new_figure(width=8)
    _grouped_bars(axes, rows, "kind", KINDS)
    axes.set(ylabel="accuracy", ylim=(0, 1.05))
    return Figure(
        "accuracy_by_stage",
        "Accuracy of each arm on held-out problems by the rarest fact they need; whiskers span the "
        "seeds.",
        figure,
    )


def _verification(results: Results) -> Figure | None:
    rows = results.select(PART, ["locate", "correct", "false_alarms"])
    if rows.empty:
        return None
    figure, axes = new_figure(width=8)
    _grouped_bars(axes, rows, "metric", ("locate", "correct", "false_alarms"))
    axes.set(ylabel="share of solutions", ylim=(0, 1.05))
    return Figure(
        "verification",
        "Wrong solutions whose first error is located, and located and corrected; right solutions "
        "that are flagged.",
        figure,
    )


def _gains(results: Results) -> Figure | None:
    rows = results.select(PART, "accuracy", kind=list(KINDS))
    if rows.empty:
        return None
    table = rows.pivot_table(index=["seed", "kind"], columns="arm", values="value")
    if "hsft" not in table:
        return None
    gains = table.sub(table["hsft"], axis=0).drop(columns="hsft").stack().rename("value")
    figure, axes = new_figure(width=8)
    _grouped_bars(axes, gains.reset_index(), "kind", KINDS)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(ylabel="accuracy - HSFT accuracy")
    return Figure(
        "gains_by_kind", "Change of accuracy against HSFT by kind of problem, seed by seed.", figure
    )


def _repeats(results: Results) -> Figure | None:
    parts = [results.select(part, "sampled_accuracy") for part in (PART, "language_model")]
    parts = [rows for rows in parts if not rows.empty]
    if not parts:
        return None
    figure, panels = new_figure(1, len(parts), width=8, squeeze=False)
    for axes, rows in zip(panels[0], parts, strict=True):
        arms = _arms(rows)
        runs = [
            [run for samples in rows[rows["arm"] == arm]["samples"] for run in samples]
            for arm in arms
        ]
        axes.boxplot(runs)
        axes.set_xticks(range(1, len(arms) + 1), [arm.replace("_", "\n") for arm in arms])
    panels[0][0].set(ylabel="accuracy of a sampled run")
    return Figure(
        "repeats", "Accuracy of independent sampled runs on the same problems, all seeds.", figure
    )


def _margins(results: Results) -> Figure | None:
    rows = results.select(PART, "reward_margin")
    if rows.empty:
        return None
    figure, axes = new_figure()
    for arm in _arms(rows):
        mean = rows[rows["arm"] == arm].groupby("step")["value"].mean()
        axes.plot(mean.index, mean, label=arm)
    axes.set(xlabel="optimiser step", ylabel="reward margin (nats x beta)")
    axes.legend()
    return Figure(
        "margins", "Margin between chosen and rejected reward over training, mean of seeds.", figure
    )


def _protocols(results: Results) -> Figure | None:
    rows = results.select("language_model", "pass_at_1")
    if rows.empty:
        return None
    sources = list(dict.fromkeys(rows["source"]))
    figure, panels = new_figure(1, len(sources), width=8, squeeze=False, sharey=True)
    for axes, source in zip(panels[0], sources, strict=True):
        _grouped_bars(axes, rows[rows["source"] == source], "protocol", PROTOCOLS)
        axes.set(title=source, ylim=(0, 1.05))
    panels[0][0].set_ylabel("greedy pass@1")
    return Figure(
        "pass_at_1_by_protocol",
        "Greedy pass@1 on each test set by the arm's own instruction, by Qwen2.5-Math's evaluation "
        "and by lm-evaluation-harness's few-shot prompts; whiskers span the seeds.",
        figure,
    )
