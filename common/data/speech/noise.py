"""Noise to disturb speech with, made from a seed: babble, one voice, music, natural sounds."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Int16

from ritornello.common.data.speech.filterbank import SAMPLE_RATE

NoiseKind = Literal["babble", "speech", "music", "natural"]
NOISE_KINDS: tuple[NoiseKind, ...] = ("babble", "speech", "music", "natural")
_PEAK = 12_000
_BABBLE_VOICES = 30


def _to_int16(signal: np.ndarray) -> np.ndarray:
    return (signal * (_PEAK / max(np.abs(signal).max(), 1e-9))).astype(np.int16)


def _babble(utterances: Sequence[np.ndarray], samples: int, rng: np.random.Generator) -> np.ndarray:
    total = np.zeros(samples)
    for index in rng.integers(len(utterances), size=_BABBLE_VOICES):
        voice = np.resize(utterances[index], samples).astype(np.float64)
        total += np.roll(voice, rng.integers(samples))
    return total / _BABBLE_VOICES


def _music(samples: int, rng: np.random.Generator) -> np.ndarray:
    time = np.arange(samples) / SAMPLE_RATE
    total = np.zeros(samples)
    onset = 0.0
    while onset < samples / SAMPLE_RATE:
        root = 110 * 2 ** (rng.integers(24) / 12)
        since = np.clip(time - onset, 0, None)
        envelope = np.exp(-since / rng.uniform(0.2, 0.8)) * (time >= onset)
        for interval in (0, 4, 7):
            for harmonic in range(1, 6):
                frequency = root * 2 ** (interval / 12) * harmonic
                total += envelope * np.sin(2 * np.pi * frequency * since) / harmonic
        onset += rng.uniform(0.2, 0.6)
    return total


def _natural(samples: int, rng: np.random.Generator) -> np.ndarray:
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    frequency = np.arange(len(spectrum)) + 1.0
    coloured = np.fft.irfft(spectrum / frequency ** rng.uniform(0.4, 1.0), samples)
    time = np.arange(samples) / SAMPLE_RATE
    slow = 1 + 0.7 * np.sin(2 * np.pi * rng.uniform(0.3, 1.5) * time + rng.uniform(0, 2 * np.pi))
    return coloured * slow


def make_noise(
    kind: NoiseKind,
    seconds: float,
    generator: np.random.Generator,
    *,
    utterances: Sequence[Int16[np.ndarray, " samples"]] = (),
) -> Int16[np.ndarray, " samples"]:
    """One stretch of noise at 16 kHz.

    Args:
        kind: ``babble`` (30 voices at once), ``speech`` (one voice), ``music`` (decaying chords) or
            ``natural`` (coloured noise that swells and fades).
        seconds: length.
        generator: draws everything.
        utterances: speech for the first two kinds.
    """
    samples = round(seconds * SAMPLE_RATE)
    if kind not in NOISE_KINDS:
        raise ValueError(f"kind must be one of {NOISE_KINDS}, got {kind!r}")
    if kind in ("babble", "speech") and not len(utterances):
        raise ValueError(f"utterances must hold speech to make {kind!r} noise from, got none")
    if kind == "babble":
        return _to_int16(_babble(utterances, samples, generator))
    if kind == "speech":
        voice = utterances[int(generator.integers(len(utterances)))]
        return _to_int16(np.resize(voice, samples).astype(np.float64))
    if kind == "music":
        return _to_int16(_music(samples, generator))
    return _to_int16(_natural(samples, generator))
