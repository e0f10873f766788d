"""An audio-visual speech set made on the spot: synthetic speech and the mouth that speaks it.

Sentences follow the grammar of the GRID corpus. espeak-ng speaks them and tells when each phoneme
begins; the lips are drawn from the phonemes, so sounds that look alike (p, b, m) are ambiguous to
the eye and sounds that noise hides are not: what audio-visual recognition lives on.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int16, UInt8

from ritornello.common.cache import cached_directory
from ritornello.common.data.speech.filterbank import SAMPLE_RATE
from ritornello.common.data.speech.mouth import (
    FRAMES_PER_SECOND,
    Face,
    draw_mouth,
    frame_centres,
    frame_index,
    lip_track,
)
from ritornello.common.data.speech.synthesis import VOICES, synthesizer

GRAMMAR = (
    ("bin", "lay", "place", "set"),
    ("blue", "green", "red", "white"),
    ("at", "by", "in", "with"),
    tuple("abcdefghijklmnopqrstuvxyz"),  # no w: the only letter of three syllables
    ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    ("again", "now", "please", "soon"),
)
WORDS = tuple(dict.fromkeys(word for slot in GRAMMAR for word in slot))
_RECIPE = 1  # part of the cache key: raise it when the pictures or the speech change
_HELD_OUT_SPEAKERS = 2


@dataclass(frozen=True)
class AVClip:
    """One sentence: sound, pictures and alignment."""

    waveform: Int16[np.ndarray, " samples"]
    frames: UInt8[np.ndarray, "frames size size"]
    landmarks: Float[np.ndarray, "frames 20 2"]
    text: str
    speaker: int
    phonemes: list[tuple[str, float]]

    def frame_phonemes(self) -> list[str]:
        """The espeak mnemonic spoken at the centre of every video frame."""
        index = frame_index(self.phonemes, frame_centres(len(self.frames)))
        names = [name for name, _ in self.phonemes] + ["_"]
        return [names[i] for i in index]


def _make_clip(rng: np.random.Generator, speakers: range, size: int) -> AVClip:
    words = [slot[rng.integers(len(slot))] for slot in GRAMMAR]
    speaker = int(rng.integers(speakers.start, speakers.stop))
    utterance = synthesizer().speak(
        " ".join(words),
        voice=VOICES[speaker],
        words_per_minute=int(rng.integers(170, 231)),
        pitch=int(rng.integers(30, 71)),
    )
    num_frames = max(round(FRAMES_PER_SECOND * len(utterance.waveform) / SAMPLE_RATE), 1)
    face = Face.draw(np.random.default_rng([speaker, 96]))
    track = lip_track(utterance.phonemes, num_frames)
    frames, landmarks = draw_mouth(track, face, size, rng)
    return AVClip(
        utterance.waveform, frames, landmarks, " ".join(words), speaker, utterance.phonemes
    )


def _save(clips: list[AVClip], folder: Path) -> None:
    np.save(folder / "waveforms.npy", np.concatenate([clip.waveform for clip in clips]))
    np.save(folder / "frames.npy", np.concatenate([clip.frames for clip in clips]))
    np.save(folder / "landmarks.npy", np.concatenate([clip.landmarks for clip in clips]))
    records = [
        {
            "samples": len(clip.waveform),
            "frames": len(clip.frames),
            "text": clip.text,
            "speaker": clip.speaker,
            "phonemes": clip.phonemes,
        }
        for clip in clips
    ]
    (folder / "clips.json").write_text(json.dumps(records))


class SyntheticAVSpeech:
    """A list of `AVClip`, made once per set of arguments and kept in the cache folder.

    Args:
        n: number of clips.
        seed: decides sentences, voices, speeds and noise; take another for another split.
        size: height and width of the pictures in pixels.
        speakers: which speakers may appear: ``all``, or ``seen`` and ``unseen`` for sets whose
            voices are disjoint.

    Raises:
        ValueError: an argument is out of range.
        UserError: the package espeakng-loader is not installed.
    """

    def __init__(self, n: int, seed: int, size: int = 96, *, speakers: str = "all") -> None:
        ranges = {
            "all": range(len(VOICES)),
            "seen": range(len(VOICES) - _HELD_OUT_SPEAKERS),
            "unseen": range(len(VOICES) - _HELD_OUT_SPEAKERS, len(VOICES)),
        }
        if speakers not in ranges:
            raise ValueError(f"speakers must be one of {tuple(ranges)}, got {speakers!r}")
        if n < 1 or size < 8:
            raise ValueError(f"n must be at least 1 and size at least 8, got n={n}, size={size}")
        self.n, self.seed, self.size, self.speakers = n, seed, size, speakers
        key = json.dumps([_RECIPE, synthesizer().version, n, seed, size, speakers])
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]

        def build(folder: Path) -> None:
            seeds = np.random.SeedSequence(seed).spawn(n)
            allowed = ranges[speakers]
            _save([_make_clip(np.random.default_rng(s), allowed, size) for s in seeds], folder)

        folder = cached_directory(f"av_speech/{digest}", build)
        self._records = json.loads((folder / "clips.json").read_text())
        self._waveforms = np.load(folder / "waveforms.npy", mmap_mode="r")
        self._frames = np.load(folder / "frames.npy", mmap_mode="r")
        self._landmarks = np.load(folder / "landmarks.npy", mmap_mode="r")
        self._first_sample = np.cumsum([0] + [r["samples"] for r in self._records])
        self._first_frame = np.cumsum([0] + [r["frames"] for r in self._records])

    def __len__(self) -> int:
        return self.n

    @property
    def frame_counts(self) -> list[int]:
        """Frames of every clip."""
        return [record["frames"] for record in self._records]

    def __getitem__(self, index: int) -> AVClip:
        if not 0 <= index < self.n:
            raise IndexError(f"index must lie in [0, {self.n}), got {index}")
        record = self._records[index]
        samples = slice(self._first_sample[index], self._first_sample[index + 1])
        frames = slice(self._first_frame[index], self._first_frame[index + 1])
        return AVClip(
            np.array(self._waveforms[samples]),
            np.array(self._frames[frames]),
            np.array(self._landmarks[frames]),
            record["text"],
            record["speaker"],
            [(name, start) for name, start in record["phonemes"]],
        )

    def __iter__(self) -> Iterator[AVClip]:
        return (self[index] for index in range(self.n))
