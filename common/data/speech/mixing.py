"""Adding noise to speech at a given signal-to-noise ratio."""

from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Int16

SAMPLES_PER_VIDEO_FRAME = 640  # 16 kHz over 25 Hz
_LOWEST, _HIGHEST = -32_768, 32_767


def tile_to(noise: Int16[np.ndarray, " noise"], length: int) -> Int16[np.ndarray, " length"]:
    """The noise from its first sample on, repeated when it is too short."""
    return np.resize(noise, length)


def mix_at_snr(
    clean: Int16[np.ndarray, " samples"],
    noise: Int16[np.ndarray, " noise"],
    snr_db: float,
    *,
    start: int = 0,
    end: int | None = None,
) -> Int16[np.ndarray, " samples"]:
    """Adds `noise` to samples `start` to `end` so that the whole signals have the ratio `snr_db`.

    The levels are those of the whole clean signal and the whole noise, also when only a part is
    disturbed. A sum that leaves the int16 range is scaled down as a whole by the side that
    overflows most. A silent signal or silent noise has no ratio: the clean signal is returned.

    Args:
        clean: speech at 16 kHz.
        noise: taken from its first sample on, repeated when it is too short.
        snr_db: ratio of the root mean squares, 20·log₁₀, in dB.
        start: first sample that is disturbed.
        end: the sample after the last one; that of the signal when absent.
    """
    speech = clean.astype(np.float32)
    disturbance = tile_to(noise, len(clean)).astype(np.float32)
    speech_rms = np.sqrt(np.mean(np.square(speech))) if len(clean) else 0.0
    noise_rms = np.sqrt(np.mean(np.square(disturbance))) if len(clean) else 0.0
    if speech_rms == 0 or noise_rms == 0:
        return clean.copy()
    gain = speech_rms / 10 ** (snr_db / 20) / noise_rms
    part = slice(start, len(clean) if end is None else end)
    mixed = speech
    mixed[part] += gain * disturbance[part]
    highest, lowest = mixed.max(), mixed.min()
    if highest > _HIGHEST or lowest < _LOWEST:
        mixed *= _HIGHEST / highest if highest >= -lowest else _LOWEST / lowest
    return mixed.astype(np.int16)


def corrupted_frames(start: int, end: int, num_frames: int) -> Bool[np.ndarray, " frames"]:
    """Video frames that lie safely inside samples `start` to `end`: start//640+1 … end//640−2."""
    flags = np.zeros(num_frames, dtype=bool)
    flags[start // SAMPLES_PER_VIDEO_FRAME + 1 : max(end // SAMPLES_PER_VIDEO_FRAME - 1, 0)] = True
    return flags


@dataclass(frozen=True)
class Mixture:
    """A disturbed waveform and the video frames flagged as corrupted."""

    waveform: Int16[np.ndarray, " samples"]
    flags: Bool[np.ndarray, " frames"]


class Noises(Protocol):
    """Waveforms by number: a list, or a collection that reads them when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> np.ndarray: ...


@dataclass
class AudioMixer:
    """Draws a noise, a level and a stretch for every utterance (CAV2vec sec. on audio corruption).

    With probability `heavy_probability` the ratio is `heavy_snr` on a chunk of the utterance, else
    `snr` over all of it.

    Args:
        noises: waveforms (int16, 16 kHz) to draw from, each that is not silent with the same
            chance.
        snr: ratio over the whole utterance in dB; of two numbers, a whole one from that range.
        chunk: least and greatest share of the utterance that a chunk takes; None: never a chunk.
        heavy_snr: ratio on a chunk in dB.
        heavy_probability: chance of a chunk.
        snr_std: standard deviation of `snr` in dB.
        probability: chance that an utterance is disturbed at all.
        flag_global: also flag the frames of an utterance that is disturbed as a whole.

    Raises:
        ValueError: a probability outside [0, 1], a chunk outside (0, 1], or no noise to be heard.
    """

    noises: Noises
    snr: float | tuple[int, int] = 0.0
    chunk: tuple[float, float] | None = (0.3, 0.5)
    _: KW_ONLY
    heavy_snr: float = -10.0
    heavy_probability: float = 0.75
    snr_std: float = 0.0
    probability: float = 1.0
    flag_global: bool = False

    def __post_init__(self) -> None:
        for name in ("probability", "heavy_probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if self.chunk is not None and not 0 < self.chunk[0] <= self.chunk[1] <= 1:
            raise ValueError(f"chunk must be two rising shares in (0, 1], got {self.chunk}")
        heard = (np.any(self.noises[number]) for number in range(len(self.noises)))
        if self.probability > 0 and not any(heard):
            raise ValueError(
                f"noises must hold at least one noise that is not silent when probability > 0, "
                f"got {len(self.noises)} noises and probability={self.probability}"
            )

    def __call__(
        self,
        clean: Int16[np.ndarray, " samples"],
        generator: np.random.Generator,
        *,
        num_frames: int | None = None,
    ) -> Mixture:
        """Disturbs one utterance; every draw comes from `generator`.

        Args:
            clean: int16 samples at 16 kHz.
            num_frames: length of the flags; that of the waveform when absent.
        """
        if clean.ndim != 1 or clean.dtype != np.int16:
            raise ValueError(
                f"clean must be one channel of int16 samples, got {clean.dtype} {clean.shape}"
            )
        frames = len(clean) // SAMPLES_PER_VIDEO_FRAME if num_frames is None else num_frames
        if generator.random() >= self.probability:
            return Mixture(clean, np.zeros(frames, dtype=bool))
        noise = self._draw(generator)
        if self.chunk is not None and generator.random() < self.heavy_probability:
            return self._mix_chunk(clean, noise, self.chunk, generator, frames)
        if isinstance(self.snr, tuple):
            snr = float(generator.integers(self.snr[0], self.snr[1] + 1))
        else:
            snr = self.snr + self.snr_std * generator.standard_normal()
        flags = np.full(frames, self.flag_global)
        return Mixture(mix_at_snr(clean, noise, snr), flags)

    def _draw(self, generator: np.random.Generator) -> np.ndarray:
        while True:
            noise = self.noises[int(generator.integers(len(self.noises)))]
            if noise.ndim != 1:
                raise ValueError(f"noises must have one channel, got shape {noise.shape}")
            if noise.any():
                return noise

    def _mix_chunk(
        self,
        clean: np.ndarray,
        noise: np.ndarray,
        chunk: tuple[float, float],
        generator: np.random.Generator,
        frames: int,
    ) -> Mixture:
        shortest, longest = (int(share * len(clean)) for share in chunk)
        length = int(generator.integers(shortest, max(longest, shortest + 1)))
        start = int(generator.integers(0, max(len(clean) - length, 1)))
        end = start + length
        mixed = mix_at_snr(clean, noise, self.heavy_snr, start=start, end=end)
        return Mixture(mixed, corrupted_frames(start, end, frames))
