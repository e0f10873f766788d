"""The speech that an experiment trains and tests on: made on the spot, or a copy of LRS3."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from ritornello.common.data.speech.av_speech import WORDS, SyntheticAVSpeech
from ritornello.common.data.speech.filterbank import LogFilterbank
from ritornello.common.data.speech.mixing import AudioMixer, Noises
from ritornello.common.data.speech.noise import NOISE_KINDS, make_noise
from ritornello.common.runs import UserError
from ritornello.methods.cav2vec.corruption import (
    HandOcclusion,
    ObjectOcclusion,
    Pixelate,
    SequenceNoise,
    VideoCorruptor,
)
from ritornello.methods.cav2vec.data import Clips, audio_features, check_labels
from ritornello.methods.cav2vec.evaluation import Condition
from ritornello.methods.cav2vec.lrs3 import LRS3Manifest, Recordings, load_noises
from ritornello.methods.cav2vec.occluders import PatchFolder, draw_hand, draw_object
from ritornello.methods.cav2vec.tokens import SubwordTokenizer, Tokenizer, WordTokenizer

_NOISE_SECONDS = 4.0
_NOISES_A_KIND = 6
_LISTS = ("tsv", "wrd")


class SpeechData(Protocol):
    """What the experiment asks of a data set."""

    def check_files(self, noises: Sequence[str] = ()) -> None: ...
    @property
    def train(self) -> Clips: ...
    @property
    def finetuning(self) -> Clips: ...
    @property
    def test(self) -> Clips: ...
    @property
    def labels(self) -> Sequence[np.ndarray]: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    def noises(self, split: str, kind: str | None = None) -> Noises: ...
    def occluders(self, split: str) -> Mapping[str, VideoCorruptor | None]: ...


@dataclass
class SyntheticData:
    """`SyntheticAVSpeech` with generated noise and drawn occluders.

    Args:
        train_clips: sentences to train on.
        test_clips: sentences to test on, of another seed.
        size: height and width of the pictures.
        num_classes: k-means classes of the stacked filterbanks.
    """

    train_clips: int
    test_clips: int
    size: int
    num_classes: int

    def check_files(self, noises: Sequence[str] = ()) -> None:
        """Makes the clips, or finds them in the cache."""
        _check_noises(noises)
        _ = self.train, self.test

    @cached_property
    def train(self) -> SyntheticAVSpeech:
        """The training clips."""
        return SyntheticAVSpeech(self.train_clips, seed=1, size=self.size)

    @property
    def finetuning(self) -> SyntheticAVSpeech:
        """The clips to fine-tune on: those of training."""
        return self.train

    @cached_property
    def test(self) -> SyntheticAVSpeech:
        """The test clips."""
        return SyntheticAVSpeech(self.test_clips, seed=2, size=self.size)

    @cached_property
    def labels(self) -> list[np.ndarray]:
        """Classes of the clean training features, for the masked language model."""
        from sklearn.cluster import KMeans

        clips = list(self.train)
        lengths = [len(clip.frames) for clip in clips]
        features = audio_features([clip.waveform for clip in clips], lengths, LogFilterbank())
        rows = [f[:, :n].T.numpy() for f, n in zip(features, lengths, strict=True)]
        frames = np.concatenate(rows)
        sample = frames[np.random.default_rng(0).permutation(len(frames))[:6000]]
        means = KMeans(self.num_classes, n_init=1, max_iter=30, random_state=0).fit(sample)
        return [means.predict(row).astype(np.int64) for row in rows]

    @cached_property
    def tokenizer(self) -> WordTokenizer:
        """One token a word."""
        return WordTokenizer(WORDS)

    @cached_property
    def _noises(self) -> dict[tuple[str, str], list[np.ndarray]]:
        made = {}
        for number, (split, clips) in enumerate((("train", self.train), ("test", self.test))):
            generator = np.random.default_rng([number, 7])
            voices = [clips[i].waveform for i in range(min(len(clips), 60))]
            for kind in NOISE_KINDS:
                made[split, kind] = [
                    make_noise(kind, _NOISE_SECONDS, generator, utterances=voices)
                    for _ in range(_NOISES_A_KIND)
                ]
        return made

    def noises(self, split: str, kind: str | None = None) -> list[np.ndarray]:
        """Noise of one kind, or of all; test noise is never heard in training."""
        kinds = NOISE_KINDS if kind is None else (kind,)
        _check_noises(kinds)
        return [noise for k in kinds for noise in self._noises[split, k]]

    def occluders(self, split: str) -> dict[str, VideoCorruptor | None]:
        """The paper's picture corruptions by name; hands and pixels appear in tests only."""
        return picture_corruptions(draw_object, draw_hand)


def _check_noises(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in NOISE_KINDS:
            raise UserError(f"noise must be one of {', '.join(NOISE_KINDS)} here, got {kind!r}")


@dataclass
class LRS3Data:
    """The reader's own copy of LRS3 with MUSAN, object patches and hands.

    Args:
        root: folder with ``train.tsv``, ``train.wrd``, ``train.km``, the same for ``test``,
            ``spm.model``, ``noise/{train,test}/{babble,speech,music,natural}``,
            ``noise/test/demand/<room>``, ``objects/{images,masks}`` and ``hands/{images,masks}``.
        finetune: name of the manifest of labelled clips; ``trainval`` for 30 hours.
    """

    root: str
    finetune: str = "train"

    def check_files(self, noises: Sequence[str] = ()) -> None:
        """Raises a UserError when something is missing that training or a test will ask for.

        Args:
            noises: names of the test noises.
        """
        root = Path(self.root)
        manifests = [f"{m}.{kind}" for m in ("train", self.finetune, "test") for kind in _LISTS]
        folders = [f"{k}/{of}" for k in ("objects", "hands") for of in ("images", "masks")]
        noise = ["noise/train", *(f"noise/test/{name}" for name in noises)]
        wanted = (*manifests, "train.km", "spm.model", *noise, *folders)
        missing = [name for name in dict.fromkeys(wanted) if not (root / name).exists()]
        if missing:
            raise UserError(
                f"data.root must be the folder of a prepared LRS3 copy, got {self.root!r}, which "
                f"has no {', '.join(missing[:6])}; methods/cav2vec/README.md lists what it holds"
            )
        try:
            for clips in (self.train, self.finetuning, self.test):
                clips.check_files()
            check_labels(self.labels, self.train.frame_counts)
            _ = self.tokenizer, self.occluders("train")
            AudioMixer(self.noises("train"))
            for name in noises:
                AudioMixer(self.noises("test", name))
        except ValueError as error:
            raise UserError(f"data.root {self.root!r}: {error}") from error

    def _manifest(self, name: str, **limits: int) -> LRS3Manifest:
        return LRS3Manifest(
            Path(self.root) / f"{name}.tsv", Path(self.root) / f"{name}.wrd", **limits
        )

    @cached_property
    def train(self) -> LRS3Manifest:
        """The clips of uptraining."""
        return self._manifest("train")

    @cached_property
    def finetuning(self) -> LRS3Manifest:
        """The labelled clips to fine-tune on."""
        return self._manifest(self.finetune)

    @cached_property
    def test(self) -> LRS3Manifest:
        """The test clips, none left out."""
        return self._manifest("test", min_frames=1, max_frames=10_000)

    @cached_property
    def labels(self) -> list[np.ndarray]:
        """The classes in ``train.km``."""
        return self.train.labels(Path(self.root) / "train.km")

    @cached_property
    def tokenizer(self) -> SubwordTokenizer:
        """The SentencePiece model."""
        return SubwordTokenizer(Path(self.root) / "spm.model")

    def noises(self, split: str, kind: str | None = None) -> Recordings:
        """Recordings of one kind, or of all kinds, each kind with the same weight."""
        folder = Path(self.root) / "noise" / split
        if kind is not None:
            return load_noises(folder / kind)
        kinds = [load_noises(each).files for each in sorted(folder.iterdir()) if each.is_dir()]
        most = max(map(len, kinds), default=0)
        return Recordings([files[n % len(files)] for files in kinds for n in range(most)])

    def occluders(self, split: str) -> dict[str, VideoCorruptor | None]:
        """The paper's picture corruptions with photographed patches."""
        folders = {k: Path(self.root) / k for k in ("objects", "hands")}
        patches = [
            PatchFolder(folder / "images", folder / "masks", turn=kind == "hands")
            for kind, folder in folders.items()
        ]
        return picture_corruptions(*patches)


def picture_corruptions(make_object, make_hand) -> dict[str, VideoCorruptor | None]:
    """Clean, the training type, and the two types that training never shows."""
    return {
        "clean": None,
        "object": VideoCorruptor((ObjectOcclusion(make_object), SequenceNoise())),
        "hands": VideoCorruptor((HandOcclusion(make_hand),)),
        "pixelate": VideoCorruptor((Pixelate(),)),
    }


def recognition_grid(
    data: SpeechData,
    kinds: Sequence[str],
    ratios: Sequence[float],
    pictures: Sequence[str],
    rooms: Sequence[str] = (),
) -> Iterator[tuple[dict[str, str | float], Condition]]:
    """Coordinates and condition of every cell: all noises, ratios and pictures, and all clean.

    Rooms are recordings of DEMAND, never heard in training, at a ratio drawn from −10 to 10 dB.
    """
    corruptors = data.occluders("test")
    yield {"noise": "clean", "picture": "clean"}, Condition("clean")
    for kind in kinds:
        noises = data.noises("test", kind)
        for ratio in ratios:
            mixer = AudioMixer(noises, ratio, chunk=None)
            for picture in pictures:
                place = {"noise": kind, "snr_db": float(ratio), "picture": picture}
                yield (
                    place,
                    Condition(f"{picture}, {kind} {ratio:g} dB", mixer, corruptors[picture]),
                )

    for room in rooms:
        mixer = AudioMixer(data.noises("test", f"demand/{room}"), (-10, 10), None)
        for picture in pictures:
            place = {"noise": f"room {room}", "picture": picture}
            yield place, Condition(f"{picture}, {room}", mixer, corruptors[picture])


def training_mixer(data: SpeechData) -> AudioMixer:
    """−10 dB on a chunk, or 0 dB on everything."""
    return AudioMixer(data.noises("train"))


def finetuning_mixer(data: SpeechData) -> AudioMixer:
    """A quarter of the utterances, as a whole, around 0 dB."""
    noises = data.noises("train")
    return AudioMixer(noises, chunk=None, probability=0.25, snr_std=5.0)
