"""Figures: a clip and its corruptions, embeddings, losses, viseme confusions, WER curves."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ritornello.common.data.speech.filterbank import LogFilterbank
from ritornello.common.reporting import Figure, Results, new_figure
from ritornello.experiments.cav2vec.data import SpeechData, training_mixer
from ritornello.experiments.cav2vec.probes import Frames
from ritornello.methods.cav2vec.batch_order import new_generator
from ritornello.methods.cav2vec.data import corrupt_clip
from ritornello.methods.cav2vec.evaluation import ridge_prediction
from ritornello.methods.cav2vec.masking import draw_masks

_NAMES = {
    "init": "start (clean speech only)",
    "avhubert": "AV-HuBERT, corrupted data",
    "av2vec": "+ masked distillation (AV2vec)",
    "cav2vec": "CAV2vec",
    "scratch": "from scratch",
}
_METRICS = {
    "dispersion": "dispersion of flagged frames ↓",
    "cosine_distance": "cosine distance of flagged frames ↓",
    "audio_from_lips_r2": "R² of the clean sound's target\nfrom corrupted lips ↑",
    "phone_accuracy_flagged": "phone accuracy on flagged frames ↑",
}


def save_strip(folder: Path, data: SpeechData, crop: int) -> None:
    """Keeps one clip as training sees it: pictures, sound, flags and masks."""
    index = int(
        np.argmin([abs(len(data.test[i].frames) - 36) for i in range(min(20, len(data.test)))])
    )
    clip = data.test[index]
    generator = new_generator(4, index)
    sound, picture = corrupt_clip(
        clip, training_mixer(data), data.occluders("test")["object"], generator
    )
    corrupted = torch.from_numpy(sound.flags | picture.flags)[None].repeat(2, 1)
    masks = draw_masks(corrupted, None, generator=generator)
    bank = LogFilterbank()
    features = [
        bank.log_mel(torch.from_numpy(w)[None])[0].numpy() for w in (clip.waveform, sound.waveform)
    ]
    np.savez_compressed(
        folder / "strip.npz",
        clean=clip.frames,
        corrupted=picture.frames,
        clean_sound=features[0],
        corrupted_sound=features[1],
        sound_flags=sound.flags,
        picture_flags=picture.flags,
        sound_mask=masks.audio[0].numpy(),
        picture_mask=masks.video[0].numpy(),
        text=clip.text,
        crop=crop,
    )


def save_embedding(
    folder: Path, train: Frames, test: Frames, visemes: tuple[list[Tensor], list[str]]
) -> None:
    """Keeps two principal components of flagged test frames, and confusions of lips alone."""
    (train_classes, test_classes), names = visemes
    centre = test.clean.mean(0)
    _, _, axes = torch.linalg.svd(test.clean - centre, full_matrices=False)
    chosen = test.flags.nonzero()[:, 0][:600]
    scores = ridge_prediction(
        train.video_only,
        torch.nn.functional.one_hot(train_classes, len(names)).float(),
        test.video_only,
    )
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, (test_classes.numpy(), scores.argmax(-1).numpy()), 1)
    np.savez_compressed(
        folder / "embedding.npz",
        clean=((test.clean - centre) @ axes[:2].T)[chosen].numpy(),
        corrupted=((test.corrupted - centre) @ axes[:2].T)[chosen].numpy(),
        classes=test_classes[chosen].numpy(),
        names=np.array(names),
        confusion=counts,
    )


def _artifact(results: Results, arm: str, name: str) -> Path | None:
    """A file of the lowest seed of an arm, if there is one."""
    rows = results.select(part="representation", arm=arm)
    if rows.empty:
        return None
    file = results.artifacts("representation", arm, int(rows["seed"].min())) / name
    return file if file.exists() else None


def figures(results: Results) -> Iterator[Figure]:
    """All figures that the table and the artifacts allow."""
    arms = [arm for arm in _NAMES if not results.select(arm=arm).empty]
    for arm in ("cav2vec", *arms):
        strip = _artifact(results, arm, "strip.npz")
        if strip is not None:
            yield _strip(strip)
            break
    if not results.select(part="representation").empty:
        yield _distances(results)
        yield from _embeddings(results)
        yield from _losses(results)
        yield from _confusion(results)
    if not results.select(part="recognition", metric="wer").empty:
        yield _word_errors(results)


def _strip(file: Path) -> Figure:
    data = np.load(file)
    shown = np.linspace(0, len(data["clean"]) - 1, 12).round().astype(int)
    figure, axes = new_figure(5, 1, width=10, height=1.25)
    for row, (title, frames) in enumerate(
        (("clean", data["clean"]), ("corrupted", data["corrupted"]))
    ):
        axes[2 * row].imshow(
            np.concatenate(list(frames[shown]), axis=1), cmap="gray", vmin=0, vmax=255
        )
        axes[2 * row].set_title(f"{title} lips", loc="left", fontsize=9)
        sound = data["clean_sound" if row == 0 else "corrupted_sound"]
        scale = {"vmin": np.percentile(data["clean_sound"], 8), "vmax": data["clean_sound"].max()}
        axes[2 * row + 1].imshow(sound.T, aspect="auto", origin="lower", cmap="magma", **scale)
        axes[2 * row + 1].set_title(f"{title} sound, log mel filterbank", loc="left", fontsize=9)
    bars = np.stack(
        [data[k] for k in ("sound_flags", "picture_flags", "sound_mask", "picture_mask")]
    )
    axes[4].imshow(bars, aspect="auto", cmap="Greys", vmin=0, vmax=1.4)
    axes[4].set_yticks(
        range(4), ["sound corrupted", "lips corrupted", "sound masked", "lips masked"]
    )
    axes[4].set_xlabel("frame (40 ms)")
    for axis in axes[:4]:
        axis.set_xticks([])
        axis.set_yticks([])
    for axis in axes:
        axis.grid(False)
    figure.suptitle(f"“{data['text']}”")
    caption = (
        "One test sentence as the student meets it: lips and sound, clean and corrupted; which "
        "frames count as corrupted, and which are masked. Runs that begin and end in corruption "
        "are not masked."
    )
    return Figure("clip", caption, figure)


def _distances(results: Results) -> Figure:
    table = results.select(part="representation")
    arms = [arm for arm in _NAMES if arm in set(table["arm"])]
    figure, axes = new_figure(1, len(_METRICS), width=3.0, height=3.2)
    for axis, (metric, title) in zip(axes, _METRICS.items(), strict=True):
        for place, arm in enumerate(arms):
            values = table[(table["metric"] == metric) & (table["arm"] == arm)]["value"]
            axis.scatter([place] * len(values), values, s=24, zorder=3)
            axis.hlines(values.mean(), place - 0.3, place + 0.3, lw=2)
        axis.set_xticks(range(len(arms)), arms, rotation=30, ha="right")
        axis.set_title(title, fontsize=9)
    caption = (
        "Every dot is a seed, every line a mean. Uptraining on corrupted speech against the start."
    )
    return Figure("representation", caption, figure)


def _embeddings(results: Results) -> Iterator[Figure]:
    files = {arm: _artifact(results, arm, "embedding.npz") for arm in ("init", "cav2vec")}
    if any(file is None for file in files.values()):
        return
    figure, axes = new_figure(1, 2, width=4.6, height=4.0)
    for axis, (arm, file) in zip(axes, files.items(), strict=True):
        data = np.load(file)
        for kind, names in enumerate(data["names"]):
            chosen = data["classes"] == kind
            colour = f"C{kind % 10}"
            axis.scatter(*data["clean"][chosen].T, s=9, color=colour, label=str(names)[:12])
            for clean, moved in zip(data["clean"][chosen], data["corrupted"][chosen], strict=True):
                axis.plot(*np.stack([clean, moved]).T, color=colour, lw=0.4, alpha=0.4)
        axis.set_title(_NAMES[arm], fontsize=10)
    axes[1].legend(fontsize=6, ncols=2, title="visemes", title_fontsize=7)
    caption = (
        "Flagged test frames on the two main axes of the clean ones: a dot is a clean frame, its "
        "line leads to where corruption takes it."
    )
    yield Figure("embedding", caption, figure)


def _losses(results: Results) -> Iterator[Figure]:
    file = _artifact(results, "cav2vec", "log.jsonl")
    if file is None:
        return
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    figure, axes = new_figure(width=6.4)
    for name in ("mlm_masked", "mlm_unmasked", "mp", "acp", "vcp"):
        points = [(row["step"], row[name]) for row in rows if row.get(name)]
        if points:
            steps, losses = zip(*points, strict=True)
            width = max(1, len(losses) // 12)
            smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
            axes.plot(steps[width - 1 :], smooth, label=name)
    axes.set_xlabel("uptraining step")
    axes.set_ylabel("mean loss a frame")
    axes.legend()
    yield Figure("losses", "CAV2vec's losses a frame during uptraining, running means.", figure)


def _confusion(results: Results) -> Iterator[Figure]:
    file = _artifact(results, "cav2vec", "embedding.npz")
    if file is None:
        return
    data = np.load(file)
    share = data["confusion"] / np.maximum(data["confusion"].sum(1, keepdims=True), 1)
    figure, axes = new_figure(width=6.2, height=5.6)
    image = axes.imshow(share, cmap="viridis", vmin=0, vmax=1)
    axes.set_xticks(range(len(data["names"])), data["names"], rotation=90, fontsize=7)
    axes.set_yticks(range(len(data["names"])), data["names"], fontsize=7)
    axes.set_xlabel("recognised")
    axes.set_ylabel("spoken")
    axes.grid(False)
    figure.colorbar(image, label="share of frames")
    caption = "Visemes read by a linear probe from corrupted lips alone (CAV2vec)."
    yield Figure("viseme_confusion", caption, figure)


def _word_errors(results: Results) -> Figure:
    table = results.select(part="recognition", metric="wer")
    noisy = table[table["noise"] != "clean"]
    pictures = list(dict.fromkeys(noisy["picture"]))
    arms = [arm for arm in _NAMES if arm in set(table["arm"])]
    figure, axes = new_figure(1, len(pictures), width=3.1, height=3.2, sharey=True, squeeze=False)
    for axis, picture in zip(axes[0], pictures, strict=True):
        for arm in arms:
            rows = noisy[(noisy["picture"] == picture) & (noisy["arm"] == arm)]
            means = rows.groupby("snr_db")["value"].mean()
            axis.plot(means.index, means.values, marker="o", ms=4, label=_NAMES[arm])
        axis.set_title(f"lips: {picture}", fontsize=10)
        axis.set_xlabel("signal-to-noise ratio (dB)")
    axes[0][0].set_ylabel("word error rate (%)")
    axes[0][-1].legend(fontsize=7)
    caption = (
        "Word error rate against the ratio of speech to noise, one panel per picture corruption."
    )
    return Figure("word_error_rate", caption, figure)
