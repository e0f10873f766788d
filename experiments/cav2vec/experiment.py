"""What one cell measures: how far corruption moves a representation, and word error rates."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor

from ritornello.common.runs import Cell, CellContext, Experiment, Measurement, UserError
from ritornello.experiments.cav2vec.data import SpeechData, recognition_grid, training_mixer
from ritornello.experiments.cav2vec.figures import figures, save_embedding, save_strip
from ritornello.experiments.cav2vec.probes import (
    Frames,
    ProbeSet,
    phoneme_classes,
    viseme_classes,
)
from ritornello.experiments.cav2vec.stages import Recipe, Stages
from ritornello.methods.cav2vec import CAV2vecForPreTraining
from ritornello.methods.cav2vec.evaluation import (
    corruption_grid,
    cosine_distance,
    dispersion,
    explained_variance,
    probe_accuracy,
    ridge_prediction,
)

__all__ = ["Recipe", "Recognition", "Representation", "figures"]
_PROBE_SEED = 10_000


def _clip_means(values: Tensor, frames: Frames) -> list[float]:
    """Mean over the flagged frames of every clip that has some."""
    means = []
    for clip in range(int(frames.clip.max()) + 1):
        chosen = values[(frames.clip == clip) & frames.flags]
        if len(chosen):
            means.append(float(chosen.mean()))
    return means


def _mean_of(metric: str, samples: list[float], unit: str = "") -> Measurement:
    return Measurement(metric, float(np.mean(samples)), unit, samples=samples)


@dataclass
class Representation(Experiment):
    """Uptrains an arm and compares its hidden states on clean and corrupted speech.

    Args:
        data: training and test speech.
        stages: how models are trained.
        probe_clips: training clips that linear probes are fitted on.
        ridge: penalty of the probes.
    """

    data: SpeechData
    stages: Stages
    probe_clips: int = 150
    ridge: float = 10.0

    def prepare(self) -> None:
        """Makes or finds the speech and the checkpoint to start from."""
        self.data.check_files()
        self.stages.check_files()

    def _probe_set(self, split: str, count: int) -> ProbeSet:
        return ProbeSet.make(
            getattr(self.data, split),
            range(count),
            training_mixer(self.data),
            self.data.occluders(split)["object"],
            self.stages.encoder.get("image_size", 88),
            _PROBE_SEED,
        )

    @cached_property
    def _train_set(self) -> ProbeSet:
        return self._probe_set("train", min(self.probe_clips, len(self.data.train)))

    @cached_property
    def _test_set(self) -> ProbeSet:
        return self._probe_set("test", len(self.data.test))

    def measure(self, arm: Recipe, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Distances on flagged frames, cross-modal recovery, phone probe."""
        folder = self.stages.uptrained_folder(self.data, arm, cell.seed, context.scratch)
        model = CAV2vecForPreTraining.from_pretrained(folder).to(self.stages.device)
        for step, losses in enumerate(json.loads((folder / "losses.json").read_text())):
            context.log(step, **losses)
        train, test = self._train_set.frames(model), self._test_set.frames(model)
        yield _mean_of("dispersion", _clip_means(dispersion(test.corrupted, test.clean), test))
        distance = cosine_distance(test.corrupted, test.clean)
        yield _mean_of("cosine_distance", _clip_means(distance, test))
        yield from self._recovery(model, train, test, cell.seed)
        if test.phonemes:
            yield from self._phones(train, test)
            save_embedding(context.artifacts, train, test, viseme_classes(train, test))
        save_strip(context.artifacts, self.data, self.stages.encoder.get("image_size", 88))

    def _recovery(
        self, model: CAV2vecForPreTraining, train: Frames, test: Frames, seed: int
    ) -> Iterator[Measurement]:
        """How much of the clean sound's target the corrupted lips alone tell.

        Every arm predicts the same target, that of the start, by a ridge regression; an arm with
        the task also predicts its own teacher's by the head it trained.
        """
        start = self.stages.start(self.data, seed).to(self.stages.device)
        wanted = self._train_set.audio_targets(start), self._test_set.audio_targets(start)
        predicted = ridge_prediction(
            train.video_only, wanted[0], test.video_only, penalty=self.ridge
        )
        flagged = test.video_flags
        yield Measurement(
            "audio_from_lips_r2", explained_variance(predicted[flagged], wanted[1][flagged])
        )
        if "acp" in model.config.tasks:
            own = self._test_set.audio_targets(model)[flagged]
            by_head = self._test_set.predicted_audio(model.cpu(), test)[flagged]
            yield Measurement("audio_from_lips_r2_head", explained_variance(by_head, own))

    def _phones(self, train: Frames, test: Frames) -> Iterator[Measurement]:
        (train_classes, test_classes), _ = phoneme_classes(train, test)
        corrupted = probe_accuracy(
            train.corrupted, train_classes, test.corrupted, test_classes, test.flags
        )
        clean = probe_accuracy(train.clean, train_classes, test.clean, test_classes, test.flags)
        yield Measurement("phone_accuracy_corrupted", corrupted.everywhere)
        yield Measurement("phone_accuracy_flagged", corrupted.flagged)
        yield Measurement("phone_accuracy_clean", clean.everywhere)


@dataclass
class Recognition(Experiment):
    """Fine-tunes an arm and counts word errors under every corruption.

    Args:
        data: training and test speech.
        stages: how models are trained.
        noises: kinds of test noise.
        ratios: their signal-to-noise ratios in dB.
        pictures: picture corruptions: ``clean``, ``object``, ``hands``, ``pixelate``.
        rooms: recordings of DEMAND to test with as well.
        decoding: arguments of `AVForSpeechSeq2Seq.generate`; CTC takes its best path.
    """

    data: SpeechData
    stages: Stages
    noises: Sequence[str] = ("babble",)
    ratios: Sequence[float] = (10, 0, -10)
    pictures: Sequence[str] = ("clean", "object", "hands", "pixelate")
    rooms: Sequence[str] = ()
    decoding: dict = field(default_factory=dict)

    def prepare(self) -> None:
        """Makes or finds the speech and the checkpoint to start from."""
        self.data.check_files([*self.noises, *(f"demand/{room}" for room in self.rooms)])
        self.stages.check_files()
        known = list(self.data.occluders("test"))
        if unknown := [name for name in self.pictures if name not in known]:
            raise UserError(f"pictures must be taken from {', '.join(known)}, got {unknown}")

    def measure(self, arm: Recipe, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Word error rates with samples a clip.

        Of every condition (`wer`), of every noise over its ratios (`wer_over_ratios`, N-WER), and
        over all noises, ratios and pictures (`wer_corrupted`).
        """
        model = self.stages.recognizer(self.data, arm, cell.seed, context.scratch)
        grid = list(
            recognition_grid(self.data, self.noises, self.ratios, self.pictures, self.rooms)
        )
        results = corruption_grid(
            model,
            self.data.test,
            [condition for _, condition in grid],
            self.data.tokenizer,
            decoding=self.decoding if self.stages.head == "seq2seq" else {},
        )
        by_noise: dict[tuple[str, str], list[np.ndarray]] = {}
        for (place, _), result in zip(grid, results.itertuples(), strict=True):
            errors, words = (np.array(x, dtype=float) for x in (result.errors, result.words))
            # weights make the mean over clips the corpus rate, whatever their lengths
            samples = 100 * errors / words.mean()
            yield Measurement("wer", result.wer, "%", list(samples), coordinates=place)
            if "snr_db" in place:
                by_noise.setdefault((place["noise"], place["picture"]), []).append(samples)
        for (noise, picture), found in by_noise.items():
            samples = np.mean(found, axis=0)
            where = {"noise": noise, "picture": picture}
            yield Measurement(
                "wer_over_ratios", float(samples.mean()), "%", list(samples), coordinates=where
            )
        if by_noise:
            overall = np.mean([samples for found in by_noise.values() for samples in found], axis=0)
            yield Measurement("wer_corrupted", float(overall.mean()), "%", samples=list(overall))
