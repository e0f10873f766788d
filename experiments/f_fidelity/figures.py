"""The figures, drawn from the table and the artifacts alone."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ritornello.common.reporting import Figure, Results, hide_ticks, new_figure
from ritornello.methods.f_fidelity.agreement import BEST_SIGN, PAIRS, places

METRICS = {
    "fidelity": "Fidelity",
    "roar": "ROAR",
    "r_fidelity": "R-Fidelity",
    "f_fidelity": "F-Fidelity",
}
_PAIR_NAMES = {
    "morf_vs_gt": "MoRF / truth",
    "lerf_vs_gt": "LeRF / truth",
    "morf_vs_lerf": "MoRF / LeRF",
}
NOISE = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def figures(results: Results) -> Iterator[Figure]:
    """Maps, fans of curves, correlations, places, confidence, sizes, photographs."""
    parts = [p for p in results.table["part"].unique() if len(results.select(p, "rho"))]
    for part in parts:
        yield from _fan(results, part)
        yield from _maps(results, part)
    yield from _correlations(results, parts)
    yield from _places(results, parts)
    yield from _confidence(results)
    yield from _sizes(results)
    yield from _photos(results)


def _first_seed(results: Results, part: str, metric: str) -> tuple[int, list[str]]:
    rows = results.select(part, metric)
    seed = int(rows["seed"].min())
    arms = [a for a in METRICS if a in set(rows.loc[rows["seed"] == seed, "arm"])]
    return seed, arms


def _fan(results: Results, part: str) -> Iterator[Figure]:
    seed, arms = _first_seed(results, part, "rho")
    sizes = sorted(results.select(part, "rho")["size"].unique())
    figure, panels = new_figure(
        2, len(arms), width=2.9, height=2.4, sharex=True, sharey=True, squeeze=False
    )
    for column, arm in enumerate(arms):
        file = results.artifacts(part, arm, seed) / "curves.npz"
        if not file.exists():
            return
        curves = np.load(file)
        for row, order in enumerate(("morf", "lerf")):
            axes = panels[row][column]
            for p, line in zip(NOISE, curves[order], strict=True):
                x = np.linspace(sizes[0], sizes[-1], len(line))
                axes.plot(x, line, color=(0.0, 0.25, 0.45), alpha=1 - 0.8 * p, label=f"{p:g}")
            axes.set_ylim(-0.03, 1.03)
        panels[0][column].set_title(METRICS[arm])
        panels[1][column].set_xlabel("share of elements chosen")
    panels[0][0].set_ylabel("accuracy, most relevant first")
    panels[1][0].set_ylabel("least relevant first")
    panels[0][-1].legend(title="noise", fontsize=6)
    caption = (
        f"{part}: removal curves of an explainer (darkest) and its degraded copies, seed {seed}. A "
        "metric ranks well where the upper curves rise and the lower ones fall with noise."
    )
    yield Figure(f"curves_{part}", caption, figure)


def _maps(results: Results, part: str) -> Iterator[Figure]:
    seed, arms = _first_seed(results, part, "rho")
    arm = "f_fidelity" if "f_fidelity" in arms else arms[0]
    file = results.artifacts(part, arm, seed) / "maps.npz"
    if not file.exists():
        return
    images, maps = (np.load(file)[name] for name in ("images", "maps"))
    if images.ndim != 4:
        return
    figure, panels = new_figure(len(images), 1 + len(maps), width=1.6, height=1.6, squeeze=False)
    for row, image in enumerate(images):
        panels[row][0].imshow(_picture(image), cmap="gray")
        for column, scores in enumerate(maps[:, row]):
            panels[row][column + 1].imshow(scores, cmap="inferno")
            panels[0][column + 1].set_title(f"noise {NOISE[::2][column]:g}", fontsize=9)
    panels[0][0].set_title("input", fontsize=9)
    hide_ticks(panels)
    yield Figure(
        f"maps_{part}",
        f"{part}: inputs, the explanation of {METRICS[arm]}'s judge, and degraded copies of it.",
        figure,
    )


def _correlations(results: Results, parts: list[str]) -> Iterator[Figure]:
    kinds = [k for k in ("macro", "micro") if len(results.select(metric=k))]
    if not parts or not kinds:
        return
    figure, panels = new_figure(
        len(parts), len(kinds), width=4.2, height=2.0, sharey="row", squeeze=False
    )
    for row, part in enumerate(parts):
        _, arms = _first_seed(results, part, "rho")
        for column, kind in enumerate(kinds):
            axes = panels[row][column]
            table = results.select(part, kind).pivot_table(
                index="arm", columns="pair", values="value"
            )
            table = table.reindex(index=arms, columns=list(PAIRS))
            axes.imshow(table.to_numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
            axes.grid(False)
            for (i, j), value in np.ndenumerate(table.to_numpy()):
                if np.isfinite(value):
                    colour = "white" if abs(value) > 0.6 else "black"
                    axes.text(
                        j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour
                    )
            axes.set_xticks(range(3), list(_PAIR_NAMES.values()), fontsize=7)
            axes.set_yticks(range(len(arms)), [METRICS[a] for a in arms], fontsize=8)
            axes.set_title(f"{part}, {kind}", fontsize=9)
    caption = (
        "Spearman correlations, mean over seeds. A good metric has −1 (red), +1 (blue), −1 (red)."
    )
    yield Figure("correlations", caption, figure)


def _places(results: Results, parts: list[str]) -> Iterator[Figure]:
    found: dict[str, dict[str, float]] = {}
    for part in parts:
        rho = results.select(part, "rho")
        sizes = sorted(rho["size"].unique())
        seeds = []
        for _, rows in rho.groupby("seed"):
            table = rows.pivot_table(index="arm", columns=["pair", "size"], values="value")
            table = table.reindex(columns=pd.MultiIndex.from_product([PAIRS, sizes]))
            good = [BEST_SIGN[pair] * table[pair].to_numpy() for pair in PAIRS]
            mean = np.mean([places(pair).mean(1) for pair in good], axis=0)
            seeds.append(dict(zip(table.index, mean, strict=True)))
        found[part] = {arm: float(np.mean([s[arm] for s in seeds if arm in s])) for arm in seeds[0]}
    if not found:
        return
    figure, axes = new_figure(width=1.5 + 1.6 * len(found), height=3.2)
    arms = [a for a in METRICS if any(a in by_arm for by_arm in found.values())]
    for number, arm in enumerate(arms):
        x = np.arange(len(found)) + (number - (len(arms) - 1) / 2) * 0.2
        axes.bar(x, [p.get(arm, np.nan) for p in found.values()], 0.19, label=METRICS[arm])
    axes.set_xticks(range(len(found)), list(found), fontsize=8)
    axes.set(ylabel="mean place, 1 is best")
    axes.legend(fontsize=8, ncols=2)
    caption = (
        "Micro rank: the place of every metric among the metrics at each size, mean over sizes, "
        "the three correlations and seeds; equal metrics share the better place."
    )
    yield Figure("micro_rank", caption, figure)


def _confidence(results: Results) -> Iterator[Figure]:
    rows = results.select(metric="confidence")
    if rows.empty:
        return
    part, seed = rows["part"].iloc[0], int(rows["seed"].min())
    fractions = sorted(rows["removed"].unique())
    figure, panels = new_figure(columns=len(fractions), width=3.0, height=2.6, squeeze=False)
    for arm, name in (("fidelity", "f"), ("f_fidelity", "fine-tuned f_r")):
        file = results.artifacts(part, arm, seed) / "confidence.npy"
        if not file.exists():
            return
        for axes, values, fraction in zip(panels[0], np.load(file), fractions, strict=True):
            axes.hist(values, bins=20, range=(0, 1), alpha=0.6, label=name)
            axes.set(title=f"{fraction:.0%} removed", xlabel="largest softmax")
    panels[0][0].legend(fontsize=8)
    caption = (
        "Confidence on test inputs with randomly removed elements: the original network loses it "
        "on inputs unlike any it has seen, the fine-tuned judge keeps it."
    )
    yield Figure("confidence", caption, figure)


def _sizes(results: Results) -> Iterator[Figure]:
    rows = results.select(metric="fid_plus")
    if rows.empty:
        return
    figure, axes = new_figure()
    for arm, own in rows.groupby("arm", sort=False):
        mean = own.groupby("size")["value"].agg(["mean", "min", "max"])
        axes.plot(mean.index, mean["mean"], marker=".", label=METRICS.get(arm, arm))
        axes.fill_between(mean.index, mean["min"], mean["max"], alpha=0.2)
    truth = results.select(metric="true_size")["value"].mean()
    axes.axvline(truth, color="black", linestyle="--", linewidth=1, label="true size")
    axes.set(xlabel="size s of the explanation", ylabel="Fid⁺(s)")
    axes.legend(fontsize=8)
    caption = (
        "Fid⁺ against the size when the planted mask is the explanation; band: seeds. F-Fidelity's "
        "curve peaks at the true size, plain fidelity stays up."
    )
    yield Figure("explanation_size", caption, figure)


def _photos(results: Results) -> Iterator[Figure]:
    rows = results.select("photos", "morf_area", "f_fidelity")
    if rows.empty:
        return
    explainers = list(rows["explainer"].unique())
    found = []
    for explainer in explainers:
        place = results.artifacts(
            "photos", "f_fidelity", int(rows["seed"].min()), explainer=explainer
        )
        if not (place / "maps.npz").exists():
            return
        found.append(np.load(place / "maps.npz"))
    images = found[0]["images"]
    figure, panels = new_figure(
        len(images), 1 + len(explainers), width=1.9, height=1.9, squeeze=False
    )
    areas = rows[rows["noise"] == 0].groupby("explainer")["value"].mean()
    for row, image in enumerate(images):
        panels[row][0].imshow(_picture(image))
        for column, (explainer, file) in enumerate(zip(explainers, found, strict=True)):
            scores = np.abs(file["maps"][row])
            axes = panels[row][column + 1]
            axes.imshow(_picture(image).mean(-1), cmap="gray", alpha=0.6)
            axes.imshow(scores, cmap="inferno", alpha=0.7, vmax=np.quantile(scores, 0.99))
            panels[0][column + 1].set_title(f"{explainer}\nMoRF {areas[explainer]:.2f}", fontsize=9)
    hide_ticks(panels)
    caption = (
        "Photographs and explanations of EfficientNet-Lite0's answer; above, the mean probability "
        "of the answer while the most relevant pixels go (F-Fidelity; lower is better)."
    )
    yield Figure("photos", caption, figure)


def _picture(image: np.ndarray) -> np.ndarray:
    low, high = image.min(), image.max()
    scaled = (image - low) / max(high - low, 1e-9)
    return scaled[0] if len(scaled) == 1 else scaled.transpose(1, 2, 0)
