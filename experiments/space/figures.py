"""What is drawn, from the table alone."""

from collections.abc import Iterator

import numpy as np

from ritornello.common.reporting import Figure, Results, new_figure

CHANCE = 0.25
# Published marks, in percent: GPT-4o with egocentric pictures, and people (card.yaml says where).
PUBLISHED = {"direction": ("GPT-4o 32.0", 0.32), "distance": ("GPT-4o 36.5", 0.365)}
PUBLISHED["map_sketching"] = ("GPT-4o 33.3", 0.333)
HUMAN = {"direction": 0.828, "mrt": 0.785}


def figures(results: Results) -> Iterator[Figure]:
    for draw in (_families, _slots, _memory, _scores, _errors, _readings, _presentations, _vision):
        yield from draw(results)


def _families(results: Results) -> Iterator[Figure]:
    rows = results.select("questions", arm="smollm2")
    if rows.empty:
        return
    figure, axes = new_figure(width=7.5, height=4.0)
    families = list(dict.fromkeys(rows["family"]))
    place = np.arange(len(families))
    marks = {"accuracy": "o", "first_rotation": "x", "calibrated": "s", "circular": "v"}
    for offset, (metric, mark) in enumerate(marks.items()):
        values = rows[rows["metric"] == metric].groupby("family")["value"].mean()
        shown = [values.get(family, np.nan) for family in families]
        axes.plot(place + 0.12 * (offset - 1.5), shown, mark, label=metric.replace("_", " "))
    published = [(i, PUBLISHED[f][1]) for i, f in enumerate(families) if f in PUBLISHED]
    people = [(i, HUMAN[f]) for i, f in enumerate(families) if f in HUMAN]
    for points, mark, name in ((published, "_", "GPT-4o, published"), (people, "*", "people")):
        if points:
            axes.plot(*zip(*points, strict=True), mark, color="black", markersize=11, label=name)
    axes.axhline(CHANCE, color="grey", linestyle="--", linewidth=1, label="chance")
    axes.set(xticks=place, ylabel="share right", ylim=(-0.05, 1.05))
    axes.set_xticklabels(families, rotation=30, ha="right")
    axes.legend(fontsize=8, ncols=2)
    yield Figure(
        "families",
        "SmolLM2 by family: mean over the four rotations, first rotation alone, all four right, "
        "and after slot preferences are taken out; published marks of GPT-4o and people.",
        figure,
    )


def _slots(results: Results) -> Iterator[Figure]:
    rows = results.select("questions", metric="slot_share", arm=["smollm2", "random"])
    if rows.empty:
        return
    figure, axes = new_figure()
    for arm, group in rows.groupby("arm"):
        shares = group.groupby("slot")["value"].mean()
        shift = 0.2 if arm == "smollm2" else -0.2
        axes.bar(shares.index + shift, shares, width=0.38, label=arm)
    axes.axhline(CHANCE, color="grey", linestyle="--", linewidth=1)
    axes.set(xticks=[1, 2, 3, 4], xlabel="slot", ylabel="share of answers", ylim=(0, 1))
    axes.legend()
    yield Figure("slots", "Chosen slot over all families and rotations; a quarter is fair.", figure)


def _memory(results: Results) -> Iterator[Figure]:
    rows = results.select("working_memory")
    if rows.empty:
        return
    figure, axes = new_figure()
    for arm, group in rows.groupby("arm"):
        played = group[group["metric"] == "success"].groupby("boxes")["value"].mean()
        exact = group[group["metric"] == "exact_success"].groupby("boxes")["value"].mean()
        (line,) = axes.plot(exact.index, exact, linewidth=1)
        axes.plot(played.index, played, "o", color=line.get_color(), label=f"memory: {arm}")
    axes.set(xlabel="boxes", ylabel="success", ylim=(0, 1.05), xticks=sorted(set(rows["boxes"])))
    axes.legend()
    yield Figure(
        "working_memory", "CSWM: success of many games (dots) on the closed form (lines).", figure
    )


def _scores(results: Results) -> Iterator[Figure]:
    metrics = ("success", "strict_success", "spl", "strict_spl")
    rows = results.select(None, game=["mct", "route_retracing", "shortcut"])
    rows = rows[rows["metric"].isin(metrics)]
    if rows.empty:
        return
    games = list(dict.fromkeys(rows["game"]))
    figure, panels = new_figure(1, len(games), width=4.2, height=3.4, squeeze=False)
    for axes, game in zip(panels[0], games, strict=True):
        means = rows[rows["game"] == game].groupby(["arm", "metric"])["value"].mean().unstack()
        place = np.arange(len(means))
        for offset, metric in enumerate(metrics):
            axes.bar(place + 0.2 * (offset - 1.5), means[metric], width=0.19, label=metric)
        axes.set(title=game, ylim=(0, 1.05), xticks=place)
        axes.set_xticklabels(means.index, rotation=40, ha="right", fontsize=8)
    panels[0][0].legend(fontsize=7)
    yield Figure(
        "walks",
        "Published and strict score of walks. zone_stopper stops within 1.5 cells as the crow "
        "flies: the published score is perfect, also where a wall stands between.",
        figure,
    )


def _errors(results: Results) -> Iterator[Figure]:
    rows = results.select("boxes", metric=["found_errors", "search_errors"])
    if rows.empty:
        return
    figure, axes = new_figure()
    means = rows.groupby(["arm", "metric"])["value"].mean().unstack()
    place = np.arange(len(means))
    for offset, metric in enumerate(means.columns):
        name = metric.replace("_", " ")
        axes.bar(place + 0.4 * offset - 0.2, means[metric], width=0.38, label=name)
    axes.set(xticks=place, ylabel="errors a game")
    axes.set_xticklabels(means.index, rotation=30, ha="right")
    axes.legend()
    yield Figure(
        "memory_errors",
        "CSWM: boxes opened although their treasure is gone, or seen empty in the same search.",
        figure,
    )


def _readings(results: Results) -> Iterator[Figure]:
    rows = results.select("questions", metric=["accuracy", "accuracy_official"])
    if rows.empty:
        return
    figure, axes = new_figure(width=4.4, height=4.0)
    for arm, group in rows.groupby("arm"):
        means = group.groupby(["family", "metric"])["value"].mean().unstack()
        axes.plot(means["accuracy"], means["accuracy_official"], "o", alpha=0.7, label=arm)
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    axes.set(xlabel="our reading", ylabel="published reading", xlim=(-0.03, 1.03))
    axes.legend(fontsize=8)
    yield Figure(
        "readings",
        "Accuracy by parser, one dot per family; `awkward` knows every answer and words it oddly.",
        figure,
    )


def _presentations(results: Results) -> Iterator[Figure]:
    text = results.select("questions", metric="accuracy")
    image = results.select("pictures", metric="accuracy")
    arms = sorted(set(text["arm"]) & set(image["arm"])) if len(text) and len(image) else []
    if not arms:
        return
    figure, axes = new_figure(width=4.4, height=4.0)
    for arm in arms:
        x = text[text["arm"] == arm].groupby("family")["value"].mean()
        y = image[image["arm"] == arm].groupby("family")["value"].mean()
        both = x.index.intersection(y.index)
        axes.plot(x[both], y[both], "o", alpha=0.7, label=arm)
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    axes.set(xlabel="text", ylabel="pictures", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    axes.legend(fontsize=8)
    yield Figure("text_and_pictures", "Accuracy by presentation, one dot per family.", figure)


def _vision(results: Results) -> Iterator[Figure]:
    rows = results.select("vision", metric="accuracy")
    if rows.empty:
        return
    figure, axes = new_figure()
    means = rows.groupby("family")["value"].mean()
    axes.bar(means.index, means, width=0.5)
    axes.axhline(CHANCE, color="grey", linestyle="--", linewidth=1)
    axes.set(ylabel="share right", ylim=(0, 1))
    yield Figure("vision", "A small network trained on pictures; dashed: chance.", figure)
