"""Figures: what each method keeps, which modality gives it, losses, embeddings, stimuli."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from ritornello.common.reporting import Figure, Results, new_figure
from ritornello.methods.comm import BimodalTrifeatures

_NAMES = {
    "cross": "Cross (CLIP)",
    "cross_self": "Cross+Self",
    "factorcl": "FactorCL",
    "comm": "CoMM",
    "simclr": "SimCLR each",
    "supcon": "SupCon (supervised)",
    "supervised": "supervised",
    "multimodal_only": "CoMM, last term only",
    "modalities_only": "CoMM, first terms only",
}
_KINDS = ("redundancy", "unique", "synergy")
_CHANCE = {
    "codes": (100 / 6, 100 / 6, 50.0),
    "pictures": (10.0, 10.0, 50.0),
}
_POINTS = 500


def save_embedding(folder: Path, features: Tensor, labels: Mapping[str, Tensor]) -> None:
    """Keeps some test embeddings with their labels for the map."""
    kept = {f"label_{name}": values[:_POINTS].numpy() for name, values in labels.items()}
    embedding = features[:_POINTS].numpy().astype(np.float32)
    np.savez_compressed(folder / "embedding.npz", allow_pickle=False, embedding=embedding, **kept)


def save_pairs(folder: Path, pairs: BimodalTrifeatures, count: int = 6) -> None:
    """Keeps a few pairs of pictures."""
    chosen = pairs.pairs[:count].numpy()
    images = pairs.images.numpy()[chosen]
    np.savez_compressed(
        folder / "pairs.npz",
        allow_pickle=False,
        images=images,
        synergy=pairs.labels["synergy"][:count].numpy(),
    )


def figures(results: Results) -> Iterator[Figure]:
    """One figure for each thing that was measured."""
    for part in ("codes", "pictures"):
        if not results.select(part, "synergy").empty:
            yield _information_kept(results, part)
            yield _losses(results, part)
        if not results.select(part, "subset_score").empty:
            yield _by_modality(results, part)
    if not results.select("information", "information").empty:
        yield _decomposition(results)
    for part in ("digits", "affect", "affect_three", "movies"):
        if not results.select(part).empty:
            yield _task(results, part)
    for part in ("codes", "pictures", "digits"):
        if (figure := _maps(results, part)) is not None:
            yield figure
    if (figure := _stimuli(results)) is not None:
        yield figure
    for part, coordinate in (("strength", "drop"), ("crops", "crop")):
        if not results.select(part).empty:
            yield _strength(results, part, coordinate)


def _arms(rows) -> list[str]:
    found = set(rows["arm"])
    return [a for a in _NAMES if a in found] + sorted(found - set(_NAMES))


def _information_kept(results: Results, part: str) -> Figure:
    rows = results.select(part)
    rows = rows[rows["metric"].isin(_KINDS)]
    arms = _arms(rows)
    figure, axis = new_figure(width=7.5)
    width = 0.8 / len(arms)
    for place, arm in enumerate(arms):
        own = rows[rows["arm"] == arm].groupby("metric")["value"]
        means, spreads = own.mean().reindex(_KINDS), own.std().reindex(_KINDS).fillna(0)
        x = np.arange(3) + (place - (len(arms) - 1) / 2) * width
        axis.bar(x, means, width * 0.92, yerr=spreads, label=_NAMES.get(arm, arm))
    for place, chance in enumerate(_CHANCE[part]):
        label = "chance" if place == 0 else None
        axis.plot([place - 0.45, place + 0.45], [chance] * 2, "k--", linewidth=1, label=label)
    axis.set(xticks=range(3), xticklabels=_KINDS, ylabel="balanced accuracy of a probe (%)")
    axis.set_ylim(0, 105)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
    caption = "What a linear probe reads off each representation; mean and deviation over seeds."
    return Figure(f"{part}_kept", caption, figure)


def _by_modality(results: Results, part: str) -> Figure:
    rows = results.select(part, "subset_score", "comm")
    table = rows.pivot_table(values="value", index="label", columns="subset", aggfunc="mean")
    figure, axis = new_figure(width=6.5)
    for place, subset in enumerate(table.columns):
        x = np.arange(len(table)) + (place - 1) * 0.27
        axis.bar(x, table[subset], 0.25, label=subset)
    axis.set(xticks=range(len(table)), ylabel="balanced accuracy (%)", ylim=(0, 105))
    axis.set_xticklabels(table.index)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
    caption = "Which modality gives what: probes of CoMM's embedding of each modality and of both."
    return Figure(f"{part}_by_modality", caption, figure)


def _losses(results: Results, part: str) -> Figure:
    rows = results.select(part, "synergy")
    seed = int(rows["seed"].min())
    figure, axis = new_figure()
    for arm in [a for a in _arms(rows) if a in ("comm", "cross_self", "cross")]:
        own = rows[(rows["arm"] == arm) & (rows["seed"] == seed)].iloc[0]
        places = {c: own[c] for c in results.coordinates if own[c] == own[c]}
        file = results.artifacts(part, arm, seed, **places) / "log.jsonl"
        if not file.exists():
            continue
        # a resumed cell repeats the steps after its checkpoint: the last line of a step counts
        lines = {entry["step"]: entry for entry in map(json.loads, file.open())}
        terms = sorted({k for entry in lines.values() for k in entry if k.startswith("term_")})
        for term in terms:
            number = int(term.removeprefix("term_"))
            label = f"{_NAMES[arm]}, term {number + 1}"
            if arm == "comm":
                end = "both" if number == len(terms) - 1 else f"modality {number}"
                label = f"CoMM, {end}"
            curve = [lines[s][term] for s in sorted(lines)]
            style = {"comm": "-", "cross_self": "--"}.get(arm, ":")
            axis.plot(sorted(lines), curve, style, label=label)
    axis.set(xlabel="step", ylabel="loss of a term")
    axis.legend()
    return Figure(f"{part}_losses", f"Terms of the losses over training, seed {seed}.", figure)


def _decomposition(results: Results) -> Figure:
    rows = results.select("information", "information")
    arms = sorted(set(rows["arm"]))
    figure, axes = new_figure(1, len(arms), width=4.2, squeeze=False, sharey=True)
    atoms = ("redundancy", "unique1", "unique2", "synergy")
    for axis, arm in zip(axes[0], arms, strict=True):
        table = rows[rows["arm"] == arm].pivot_table(values="value", index="label", columns="atom")
        table, bottom = table.reindex(index=atoms, columns=atoms), np.zeros(4)
        for atom in atoms:
            axis.bar(range(4), table[atom], bottom=bottom, label=atom)
            bottom = bottom + table[atom].to_numpy()
        axis.set(title=arm, xticks=range(4), xlabel="label")
        axis.set_xticklabels(atoms, rotation=20)
    axes[0][0].set_ylabel("bits")
    axes[0][-1].legend(title="atom")
    caption = "Exact decomposition of what two modalities tell about each label of the code world."
    return Figure("information", caption, figure)


def _task(results: Results, part: str) -> Figure:
    rows = results.select(part)
    metric = next(m for m in ("accuracy", "f1_weighted") if m in set(rows["metric"]))
    rows = rows[rows["metric"] == metric]
    own = rows.groupby("arm")["value"]
    arms = _arms(rows)
    figure, axis = new_figure(width=7.0, height=3.0)
    spreads = own.std().reindex(arms).fillna(0)
    axis.barh([_NAMES.get(a, a) for a in arms], own.mean().reindex(arms), xerr=spreads)
    low = max(0.0, float(rows["value"].min()) - 10)
    axis.set(xlabel=f"{metric.replace('_', ' ')} of a linear probe (%)", xlim=(low, 100))
    caption = f"Linear probes on the task {part!r}; mean and deviation over seeds."
    return Figure(f"{part}_probe", caption, figure)


def _maps(results: Results, part: str) -> Figure | None:
    """t-SNE of the test embeddings of two arms, coloured by label."""
    rows = results.select(part)
    files = []
    for arm in ("cross", "comm"):
        own = rows[rows["arm"] == arm]
        if own.empty:
            continue
        seed = int(own["seed"].min())
        first = own[own["seed"] == seed].iloc[0]
        grid = {c: first[c] for c in ("bias",) if c in own and first[c] == first[c]}
        file = results.artifacts(part, arm, seed, **grid) / "embedding.npz"
        if file.exists():
            files.append((arm, np.load(file)))
    if not files:
        return None
    from sklearn.manifold import TSNE

    labels = [n for n in files[0][1].files if n.startswith("label_")][:3]
    figure, axes = new_figure(len(files), len(labels), width=3.4, height=3.2, squeeze=False)
    for line, (arm, arrays) in zip(axes, files, strict=True):
        points = arrays["embedding"]
        perplexity = min(30.0, (len(points) - 1) / 3)
        places = TSNE(perplexity=perplexity, max_iter=300, random_state=0).fit_transform(points)
        for axis, label in zip(line, labels, strict=True):
            axis.scatter(*places.T, c=arrays[label], cmap="tab10", s=6)
            axis.set(xticks=[], yticks=[])
            axis.set_title(f"{_NAMES[arm]}: {label.removeprefix('label_')}")
    return Figure(f"{part}_map", "t-SNE of test embeddings, coloured by label.", figure)


def _stimuli(results: Results) -> Figure | None:
    rows = results.select("pictures")
    for _, row in rows.iterrows():
        places = {c: row[c] for c in ("bias",) if c in row and row[c] == row[c]}
        file = results.artifacts("pictures", row["arm"], int(row["seed"]), **places) / "pairs.npz"
        if file.exists():
            arrays = np.load(file)
            break
    else:
        return None
    count = len(arrays["images"])
    figure, axes = new_figure(2, count, width=1.4, height=1.5, squeeze=False)
    for place in range(count):
        for m in (0, 1):
            axes[m][place].imshow(arrays["images"][place, m].transpose(1, 2, 0))
            axes[m][place].axis("off")
        axes[0][place].set_title("synergy" if arrays["synergy"][place] else "none", fontsize=8)
    caption = "Pairs of pictures: one shape; synergy where the texture above fits the colour below."
    return Figure("stimuli", caption, figure)


def _strength(results: Results, part: str, coordinate: str) -> Figure:
    rows = results.select(part)
    figure, axis = new_figure()
    for kind in _KINDS:
        own = rows[rows["metric"] == kind]
        if own.empty:
            continue
        curve = own.groupby(coordinate)["value"].agg(["mean", "min", "max"])
        axis.plot(curve.index, curve["mean"], marker="o", label=kind)
        axis.fill_between(curve.index, curve["min"], curve["max"], alpha=0.2)
    names = {"drop": "share of features dropped", "crop": "smallest crop"}
    axis.set(xlabel=names[coordinate], ylabel="probe (%)")
    axis.legend()
    caption = "What CoMM keeps against the strength of its augmentation."
    return Figure(f"{part}_by_{coordinate}", caption, figure)
