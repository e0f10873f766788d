"""From clips to batches: corruption, features, crops; batch number i depends on i alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from ritornello.common.data.speech.av_speech import AVClip
from ritornello.common.data.speech.filterbank import LogFilterbank
from ritornello.common.data.speech.mixing import AudioMixer, Mixture
from ritornello.methods.cav2vec.batch import SpeechBatch
from ritornello.methods.cav2vec.batch_order import BatchOrder, new_generator
from ritornello.methods.cav2vec.corruption import Corrupted, VideoCorruptor
from ritornello.methods.cav2vec.frontend import VIDEO_MEAN, VIDEO_STD
from ritornello.methods.cav2vec.pretraining import AVBatch
from ritornello.methods.cav2vec.tokens import PAD, Tokenizer

_LENGTH_TOLERANCE = 3  # frames by which sound and picture of one clip may differ


class Clips(Protocol):
    """A sized collection of audio-visual clips that knows their lengths in frames."""

    @property
    def frame_counts(self) -> Sequence[int]:
        """Frames of every clip."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> AVClip: ...


def normalize_video(frames: UInt8[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Grey values to the scale the encoder was trained on."""
    return (frames.float() / 255 - VIDEO_MEAN) / VIDEO_STD


def centre_crop(frames: np.ndarray, size: int) -> np.ndarray:
    """The middle `size`×`size` of (time, height, width).

    Raises:
        ValueError: smaller frames.
    """
    height, width = _checked_sides(frames, size)
    top, left = round((height - size) / 2), round((width - size) / 2)
    return frames[:, top : top + size, left : left + size]


def random_corner(frames: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """Top and left of a `size`×`size` crop of (time, height, width).

    Raises:
        ValueError: smaller frames.
    """
    return generator.integers(0, np.array(_checked_sides(frames, size)) - size + 1)


def _checked_sides(frames: np.ndarray, size: int) -> tuple[int, int]:
    height, width = frames.shape[1:]
    if height < size or width < size:
        raise ValueError(
            f"frames must be at least {size} pixels high and wide, got {height}×{width}"
        )
    return height, width


def check_clip(waveform: np.ndarray, frames: np.ndarray) -> None:
    """Raises a ValueError when sound and picture are of clearly different length."""
    heard = len(waveform) / 640
    if abs(heard - len(frames)) > _LENGTH_TOLERANCE:
        raise ValueError(
            f"waveform and frames must last equally long, within {_LENGTH_TOLERANCE} frames: "
            f"got {heard:.1f} and {len(frames)} frames of 40 ms"
        )


def check_labels(labels: Sequence[np.ndarray], frame_counts: Sequence[int]) -> None:
    """Raises a ValueError unless there is a row of labels for every clip, of about its length."""
    if len(labels) != len(frame_counts):
        raise ValueError(f"labels must be {len(frame_counts)} rows, got {len(labels)}")
    for clip, (row, frames) in enumerate(zip(labels, frame_counts, strict=True)):
        if abs(len(row) - frames) > _LENGTH_TOLERANCE:
            raise ValueError(
                f"labels must be as many as a clip's frames, within {_LENGTH_TOLERANCE}: "
                f"clip {clip} has {len(row)} and {frames}"
            )


def audio_features(
    waveforms: Sequence[np.ndarray], num_frames: Sequence[int], filterbank: LogFilterbank
) -> Float[Tensor, "batch channels frames"]:
    """Filterbanks of several waveforms in one call, each fitted to its clip's video."""
    lengths = torch.tensor([len(w) for w in waveforms])
    padded = torch.zeros(len(waveforms), int(lengths.max()), dtype=torch.int16)
    for row, waveform in zip(padded, waveforms, strict=True):
        row[: len(waveform)] = torch.from_numpy(waveform)
    return filterbank(padded, lengths, num_frames=torch.tensor(num_frames))


def clip_batch(
    waveform: np.ndarray | None, frames: np.ndarray | None, image_size: int
) -> SpeechBatch:
    """One clip, or one modality of it, as a batch for recognition.

    Args:
        waveform: int16 samples at 16 kHz (samples), or None.
        frames: uint8 mouth crops at 25 Hz (time, height, width), or None.
        image_size: height and width of the middle that is kept.

    Raises:
        ValueError: neither, several channels, too small pictures, or lengths that differ.
    """
    if waveform is None and frames is None:
        raise ValueError("waveform and frames are both None: at least one is needed")
    audio = video = None
    if waveform is not None:
        if waveform.ndim != 1:
            raise ValueError(f"waveform must have one channel, got shape {waveform.shape}")
        num_frames = None if frames is None else len(frames)
        audio = LogFilterbank()(torch.from_numpy(waveform)[None], num_frames=num_frames)
    if frames is not None:
        if waveform is not None:
            check_clip(waveform, frames)
        cropped = np.ascontiguousarray(centre_crop(frames, image_size))
        video = normalize_video(torch.from_numpy(cropped))[None, None]
    return SpeechBatch(audio, video, None)


def corrupt_clip(
    clip: AVClip,
    mixer: AudioMixer | None,
    corruptor: VideoCorruptor | None,
    generator: np.random.Generator,
) -> tuple[Mixture, Corrupted]:
    """Sound and picture of one clip, disturbed, with the flags of both."""
    clean = np.zeros(len(clip.frames), dtype=bool)
    sound = (
        Mixture(clip.waveform, clean)
        if mixer is None
        else mixer(clip.waveform, generator, num_frames=len(clip.frames))
    )
    picture = (
        Corrupted(clip.frames, clean)
        if corruptor is None
        else corruptor(clip.frames, generator, clip.landmarks)
    )
    return sound, picture


@dataclass
class UptrainingBatches:
    """Batch i of uptraining: clean and corrupted versions share time window, crop and flip.

    Args:
        clips: what to draw from.
        mixer: disturbs the sound.
        corruptor: disturbs the picture.
        image_size: height and width after cropping.
        batch_size: clips a batch; None: `batch_frames` decides.
        max_frames: longest window; all windows have the length of the shortest clip of the batch.
        labels: k-means classes at 25 Hz for every clip.
        seed: decides order, corruption and crops.
        batch_frames: frames a batch, of clips of like length; see `BatchOrder`.
    """

    clips: Clips
    mixer: AudioMixer | None
    corruptor: VideoCorruptor | None
    image_size: int
    batch_size: int | None
    max_frames: int = 400
    labels: Sequence[np.ndarray] | None = None
    seed: int = 0
    batch_frames: int | None = None
    filterbank: LogFilterbank = field(default_factory=LogFilterbank)

    def __post_init__(self) -> None:
        if self.labels is not None:
            check_labels(self.labels, self.clips.frame_counts)
        self._rows = BatchOrder(
            self.clips.frame_counts,
            batch_size=self.batch_size,
            batch_frames=self.batch_frames,
            max_frames=self.max_frames,
            seed=self.seed,
        )

    def __call__(self, number: int) -> AVBatch:
        """Batch `number`: audio (B, 104, T), video (B, 1, T, H, W), flags and labels (B, T)."""
        rows = self._rows(number)
        clips = [self.clips[index] for _, index in rows]
        generators = [new_generator(self.seed, 2, epoch, index) for epoch, index in rows]
        corrupted = [
            corrupt_clip(clip, self.mixer, self.corruptor, generator)
            for clip, generator in zip(clips, generators, strict=True)
        ]
        lengths = [len(clip.frames) for clip in clips]
        labelled = [self._labelled(index, n) for (_, index), n in zip(rows, lengths, strict=True)]
        window = min([*labelled, self.max_frames])
        starts = [
            int(g.integers(n - window + 1)) for g, n in zip(generators, labelled, strict=True)
        ]
        sounds = [mixture.waveform for mixture, _ in corrupted] + [c.waveform for c in clips]
        features = audio_features(sounds, lengths * 2, self.filterbank)
        stop = [slice(start, start + window) for start in starts]
        audio = torch.stack([f[:, s] for f, s in zip(features, stop * 2, strict=True)])
        videos = [picture.frames for _, picture in corrupted] + [c.frames for c in clips]
        video = self._pictures([v[s] for v, s in zip(videos, stop * 2, strict=True)], generators)
        audio_flags, video_flags = (
            torch.from_numpy(
                np.stack([pair[k].flags[s] for pair, s in zip(corrupted, stop, strict=True)])
            )
            for k in (0, 1)
        )
        labels = None
        if self.labels is not None:
            chosen = [self.labels[index][s] for (_, index), s in zip(rows, stop, strict=True)]
            labels = torch.from_numpy(np.stack(chosen)).long()
        size = len(rows)
        clean = audio[size:], video[size:]
        return AVBatch(audio[:size], video[:size], *clean, audio_flags, video_flags, labels)

    def _labelled(self, index: int, frames: int) -> int:
        """Frames of a clip that have a label: the extractor's may be a few fewer or more."""
        return frames if self.labels is None else min(len(self.labels[index]), frames)

    def _pictures(
        self, videos: list[np.ndarray], generators: list[np.random.Generator]
    ) -> Float[Tensor, "twice 1 time size size"]:
        size, cropped = self.image_size, []
        half = len(generators)
        for generator, pair in zip(generators, zip(videos[:half], videos[half:]), strict=True):
            top, left = random_corner(pair[0], size, generator)
            flip = -1 if generator.random() < 0.5 else 1
            cropped.append([x[:, top : top + size, left : left + size][..., ::flip] for x in pair])
        ordered = [pair[k] for k in (0, 1) for pair in cropped]
        return normalize_video(torch.from_numpy(np.stack(ordered)))[:, None]


@dataclass
class LabelledBatches:
    """Batch i of fine-tuning or of a test: whole clips, padded at the right.

    Args:
        clips: what to draw from.
        tokenizer: makes the targets.
        mixer: disturbs the sound; None leaves it clean.
        corruptor: disturbs the picture.
        image_size: height and width after cropping.
        batch_size: clips a batch; None: `batch_frames` decides.
        augment: random crop and flip and a shuffled order; without it the middle, in order.
        seed: decides everything random.
        batch_frames: frames a batch, of clips of like length; see `BatchOrder`.
    """

    clips: Clips
    tokenizer: Tokenizer
    mixer: AudioMixer | None
    corruptor: VideoCorruptor | None
    image_size: int
    batch_size: int | None
    augment: bool = True
    seed: int = 0
    batch_frames: int | None = None
    filterbank: LogFilterbank = field(default_factory=LogFilterbank)

    def __post_init__(self) -> None:
        self._rows = BatchOrder(
            self.clips.frame_counts,
            batch_size=self.batch_size,
            batch_frames=self.batch_frames,
            seed=self.seed,
        )

    def __call__(self, number: int) -> SpeechBatch:
        """Batch `number` of the shuffled clips."""
        rows = self._rows(number)
        return self._assemble(rows, [self.clips[index] for _, index in rows])

    def in_order(self) -> Iterator[tuple[SpeechBatch, list[str]]]:
        """All clips once, `batch_size` at a time, each batch with its texts; none is dropped."""
        step = self.batch_size or 1
        for first in range(0, len(self.clips), step):
            indices = range(first, min(first + step, len(self.clips)))
            clips = [self.clips[i] for i in indices]
            yield self._assemble([(0, i) for i in indices], clips), [c.text for c in clips]

    def _assemble(self, rows: list[tuple[int, int]], clips: list[AVClip]) -> SpeechBatch:
        generators = [new_generator(self.seed, 3, epoch, index) for epoch, index in rows]
        disturbed = [
            corrupt_clip(clip, self.mixer, self.corruptor, generator)
            for clip, generator in zip(clips, generators, strict=True)
        ]
        lengths = [len(clip.frames) for clip in clips]
        audio = audio_features([m.waveform for m, _ in disturbed], lengths, self.filterbank)
        size = self.image_size
        video = torch.zeros(len(clips), 1, max(lengths), size, size)
        for row, (_, picture), generator in zip(video, disturbed, generators, strict=True):
            frames = self._crop(picture.frames, generator)
            row[0, : len(frames)] = normalize_video(torch.from_numpy(frames))
        padding = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
        encoded = [self.tokenizer.encode(clip.text) for clip in clips]
        token_lengths = torch.tensor([len(tokens) for tokens in encoded])
        tokens = torch.full((len(clips), int(token_lengths.max())), PAD)
        for row, sequence in zip(tokens, encoded, strict=True):
            row[: len(sequence)] = torch.tensor(sequence)
        return SpeechBatch(audio, video, padding, tokens, token_lengths)

    def _crop(self, frames: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        size = self.image_size
        if not self.augment:
            return np.ascontiguousarray(centre_crop(frames, size))
        top, left = random_corner(frames, size, generator)
        flip = -1 if generator.random() < 0.5 else 1
        return np.ascontiguousarray(frames[:, top : top + size, left : left + size][..., ::flip])
