"""Speech by espeak-ng with the time of every phoneme."""

import _ctypes
import ctypes
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int16

from ritornello.common.optional import require

_SYNCHRONOUS, _PHONEME_EVENTS, _DONT_EXIT = 2, 0x1, 0x8000
_UTF8, _POSITION_CHARACTER = 1, 1
_RATE_PARAMETER, _PITCH_PARAMETER = 1, 3
_EVENT_END, _EVENT_PHONEME = 0, 7
_LIBRARY_SEED = 1
VOICES = ("en", "en+f1", "en+f2", "en+f3", "en+f4", "en+m1", "en+m2", "en+m3", "en+m4", "en+m5")


class _Identity(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Identity),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


@dataclass(frozen=True)
class Utterance:
    """Synthetic speech: int16 samples at 16 kHz, and (mnemonic, start in seconds) per phoneme."""

    waveform: Int16[np.ndarray, " samples"]
    phonemes: list[tuple[str, float]]


class EspeakSynthesizer:
    """espeak-ng as a pure function: what is said depends on the arguments alone.

    The library keeps oscillators and random numbers from one sentence to the next, so it is loaded
    afresh for each (about a millisecond). Get the process's one from `synthesizer`.
    """

    def __init__(self) -> None:
        loader = require("espeakng_loader", extra="assets")
        self._path, self._data = loader.get_library_path(), loader.get_data_path().encode()
        self._callback = _Callback(self._receive)  # kept: the library holds only a pointer
        self._chunks: list[np.ndarray] = []
        self._events: list[tuple[str, int]] = []
        self._library: ctypes.CDLL | None = None
        self._rate = 0
        self._load()

    def _load(self) -> ctypes.CDLL:
        if self._library is not None:
            self._library.espeak_Terminate()
            close = _ctypes.FreeLibrary if os.name == "nt" else _ctypes.dlclose
            close(self._library._handle)
        library = ctypes.CDLL(self._path)
        self._library = library
        library.espeak_Info.restype = ctypes.c_char_p
        library.espeak_ng_SetRandSeed.argtypes = [ctypes.c_long]
        self._rate = library.espeak_Initialize(
            _SYNCHRONOUS, 0, self._data, _PHONEME_EVENTS | _DONT_EXIT
        )
        if self._rate <= 0:
            raise RuntimeError(f"espeak-ng could not start (code {self._rate})")
        library.espeak_ng_SetRandSeed(_LIBRARY_SEED)
        library.espeak_SetSynthCallback(self._callback)
        return library

    @property
    def version(self) -> str:
        """The library's own version, part of what decides the waveform."""
        assert self._library is not None
        return self._library.espeak_Info(None).decode().split()[0]

    def _receive(self, samples: Any, count: int, events: Any) -> int:
        if count > 0 and samples:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while events[index].type != _EVENT_END:
            if events[index].type == _EVENT_PHONEME:
                mnemonic = events[index].id.string.decode("utf-8", "replace")
                self._events.append((mnemonic, events[index].sample))
            index += 1
        return 0

    def speak(
        self, text: str, *, voice: str = "en", words_per_minute: int = 190, pitch: int = 50
    ) -> Utterance:
        """Speaks one sentence.

        Args:
            text: what to say.
            voice: an espeak-ng voice, see `VOICES`.
            words_per_minute: speed, 80 to 450.
            pitch: 0 to 100.
        """
        from scipy.signal import resample_poly

        if not text.strip():
            raise ValueError(f"text must hold something to say, got {text!r}")
        library = self._load()
        if library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(f"voice {voice!r} is not known to espeak-ng; try one of {VOICES}")
        library.espeak_SetParameter(_RATE_PARAMETER, words_per_minute, 0)
        library.espeak_SetParameter(_PITCH_PARAMETER, pitch, 0)
        self._chunks, self._events = [], []
        encoded = text.encode() + b"\0"
        library.espeak_Synth(encoded, len(encoded), 0, _POSITION_CHARACTER, 0, _UTF8, None, None)
        raw = np.concatenate(self._chunks).astype(np.float64)
        resampled = resample_poly(raw, 320, 441)
        waveform = np.clip(np.round(resampled), -32_768, 32_767).astype(np.int16)
        phonemes = [(name, sample / self._rate) for name, sample in self._events if name]
        return Utterance(waveform, phonemes)


@lru_cache(maxsize=1)
def synthesizer() -> EspeakSynthesizer:
    """The process's espeak-ng, started at the first call.

    Raises:
        UserError: the package espeakng-loader is not installed.
    """
    return EspeakSynthesizer()
