"""Drawn mouths: phonemes to lip shapes, lip shapes to pictures and landmarks."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

FRAMES_PER_SECOND = 25
_TRACK_RATE = 200
_COARTICULATION_SECONDS = 0.030
# The synthesiser's phoneme events come about 30 ms after the sound changes (where opening and
# loudness correlate best); lips do not lag behind the voice.
_EVENT_DELAY_SECONDS = 0.030
_UNITS = 96  # coordinates of the drawing; scaled to the picture's size
_CAVITY, _TEETH, _TONGUE = 35.0, 225.0, 120.0
OPENING, WIDTH, ROUNDING, TEETH, TONGUE = range(5)

_REST = (0.03, 0.5, 0.1, 0.0, 0.0)
_OTHER = (0.35, 0.5, 0.2, 0.3, 0.3)
_VISEMES = {
    "p b m": (0.0, 0.5, 0.1, 0.0, 0.0),
    "f v": (0.08, 0.55, 0.1, 1.0, 0.0),
    "T D": (0.18, 0.55, 0.1, 0.6, 1.0),
    "t d n l s z N": (0.2, 0.6, 0.1, 0.7, 0.5),
    "k g h": (0.3, 0.5, 0.1, 0.3, 0.2),
    "S Z tS dZ": (0.25, 0.3, 0.8, 0.8, 0.1),
    "r r-": (0.22, 0.35, 0.6, 0.2, 0.3),
    "w": (0.12, 0.1, 1.0, 0.0, 0.0),
    "j ;": (0.2, 0.8, 0.0, 0.5, 0.3),
    "i: i I": (0.25, 0.9, 0.0, 0.6, 0.3),
    "i@ I2": (0.28, 0.75, 0.0, 0.5, 0.3),
    "E eI": (0.45, 0.8, 0.0, 0.5, 0.3),
    "a a# V A:": (0.85, 0.6, 0.0, 0.3, 0.4),
    "aI aU": (0.9, 0.55, 0.1, 0.3, 0.4),
    "0 O: oU o@": (0.6, 0.3, 0.8, 0.1, 0.2),
    "u:": (0.2, 0.15, 1.0, 0.0, 0.1),
    "@ 3:": (0.4, 0.5, 0.2, 0.3, 0.3),
}
_SHAPE_OF = {name: shape for names, shape in _VISEMES.items() for name in names.split()}
_CLASS_OF = {name: names for names in _VISEMES for name in names.split()}
_LONGEST_FIRST = sorted(_SHAPE_OF, key=len, reverse=True)


def bare_phoneme(mnemonic: str) -> str:
    """An espeak mnemonic without stress and pause marks; empty for silence."""
    bare = mnemonic.translate(str.maketrans("", "", "',%=_|"))
    return "" if set(bare) <= {":"} else bare


def _longest_prefix(mnemonic: str) -> str | None:
    bare = bare_phoneme(mnemonic)
    return next((name for name in _LONGEST_FIRST if bare.startswith(name)), None)


def lip_shape(mnemonic: str) -> tuple[float, float, float, float, float]:
    """(opening, width, rounding, teeth, tongue) of an espeak phoneme, each in [0, 1]."""
    if not bare_phoneme(mnemonic):
        return _REST
    name = _longest_prefix(mnemonic)
    return _OTHER if name is None else _SHAPE_OF[name]


def viseme_class(mnemonic: str) -> str:
    """The phonemes that look alike, as one name: ``"p b m"``, ``"rest"``, ``"other"``."""
    if not bare_phoneme(mnemonic):
        return "rest"
    name = _longest_prefix(mnemonic)
    return "other" if name is None else _CLASS_OF[name]


def frame_index(phonemes: list[tuple[str, float]], times: np.ndarray) -> np.ndarray:
    """Index of the phoneme spoken at each time; -1 before the first."""
    starts = np.array([start for _, start in phonemes])
    return np.searchsorted(starts, times, side="right") - 1


def frame_centres(num_frames: int) -> Float[np.ndarray, " frames"]:
    """Times in seconds at which 25 Hz frames are taken."""
    return (np.arange(num_frames) + 0.5) / FRAMES_PER_SECOND


def lip_track(phonemes: list[tuple[str, float]], num_frames: int) -> Float[np.ndarray, "frames 5"]:
    """Lip shapes at 25 Hz: steps between phonemes, smoothed as in coarticulation.

    Lips that meet for p, b and m do meet: the opening is forced shut around the closure, which
    smoothing alone would leave ajar between open vowels.
    """
    from scipy.ndimage import gaussian_filter1d

    phonemes = [(name, start - _EVENT_DELAY_SECONDS) for name, start in phonemes]
    duration = num_frames / FRAMES_PER_SECOND
    times = np.arange(int(np.ceil(duration * _TRACK_RATE)) + 1) / _TRACK_RATE
    spoken = frame_index(phonemes, times)
    shapes = np.array([lip_shape(name) for name, _ in phonemes] + [_REST])
    track = gaussian_filter1d(
        shapes[spoken], _COARTICULATION_SECONDS * _TRACK_RATE, axis=0, mode="nearest"
    )
    ends = [start for _, start in phonemes[1:]] + [duration]
    for (name, start), end in zip(phonemes, ends, strict=True):
        if viseme_class(name) == "p b m":
            away = np.maximum(np.maximum(start - times, times - end), 0)
            track[:, OPENING] *= np.clip((away - 0.02) / 0.03, 0, 1)
    nearest = np.minimum(
        (frame_centres(num_frames) * _TRACK_RATE).round().astype(int), len(times) - 1
    )
    return track[nearest]


@dataclass(frozen=True)
class Face:
    """How one speaker's mouth looks."""

    skin: float
    lip_tone: float
    mouth_size: float
    lip_thickness: float
    shading: float
    shading_phase: float

    @classmethod
    def draw(cls, generator: np.random.Generator) -> "Face":
        """A random face."""
        return cls(
            skin=generator.uniform(120, 200),
            lip_tone=generator.uniform(0.55, 0.75),
            mouth_size=generator.uniform(0.85, 1.15),
            lip_thickness=generator.uniform(3.0, 5.5),
            shading=generator.uniform(4, 12),
            shading_phase=generator.uniform(0, 2 * np.pi),
        )


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _head_motion(num_frames: int, generator: np.random.Generator) -> np.ndarray:
    from scipy.ndimage import gaussian_filter1d

    raw = gaussian_filter1d(generator.standard_normal((num_frames, 2)), 4, axis=0, mode="nearest")
    return np.clip(raw * 3, -2, 2)


def _lip_landmarks(
    half_width: np.ndarray, half_height: np.ndarray, thickness: np.ndarray, centre: np.ndarray
) -> np.ndarray:
    outer = np.pi - 2 * np.pi * np.arange(12) / 12  # 48-59, from the left corner over the top
    inner = np.pi - 2 * np.pi * np.arange(8) / 8  # 60-67
    wide, high = half_width + 0.8 * thickness, half_height + thickness
    outer_points = np.stack([wide * np.cos(outer), -high * np.sin(outer)], axis=-1)
    inner_points = np.stack(
        [0.85 * half_width * np.cos(inner), -half_height * np.sin(inner)], axis=-1
    )
    return np.concatenate([outer_points, inner_points], axis=1) + centre[:, None]


def draw_mouth(
    track: Float[np.ndarray, "frames 5"], face: Face, size: int, generator: np.random.Generator
) -> tuple[UInt8[np.ndarray, "frames size size"], Float[np.ndarray, "frames 20 2"]]:
    """Draws a clip.

    Args:
        track: lip shapes, one a frame.
        face: the speaker.
        size: height and width of a picture in pixels.
        generator: draws head motion and sensor noise.

    Returns:
        Grey pictures and the lip landmarks 48 to 67 as (x, y) in pixels.
    """
    shape = track.astype(np.float32)[:, :, None, None]
    opening, width, rounding = shape[:, OPENING], shape[:, WIDTH], shape[:, ROUNDING]
    half_width = face.mouth_size * (16 + 14 * width - 6 * rounding)
    half_height = face.mouth_size * (1 + 17 * opening)
    thickness = face.lip_thickness * (1 + 0.5 * rounding)
    centre = _head_motion(len(track), generator) + _UNITS / 2
    centre[:, 1] += 4 * track[:, OPENING]
    pixels = ((np.arange(size) + 0.5) * _UNITS / size).astype(np.float32)
    x = pixels[None, None, :] - centre[:, 0, None, None].astype(np.float32)
    y = pixels[None, :, None] - centre[:, 1, None, None].astype(np.float32)
    outer = _sigmoid(
        18 * (1 - (x / (half_width + 0.8 * thickness)) ** 2 - (y / (half_height + thickness)) ** 2)
    )
    inner = _sigmoid(
        18 * (1 - (x / (0.85 * half_width)) ** 2 - (y / np.maximum(half_height, 0.8)) ** 2)
    )
    spread = 2 + 0.25 * half_height
    teeth = shape[:, TEETH] * np.exp(-0.5 * ((y + 0.55 * half_height) / spread) ** 2)
    tongue = shape[:, TONGUE] * np.exp(
        -0.5 * ((y - 0.6 * half_height) / spread) ** 2 - 0.5 * (x / (0.5 * half_width)) ** 2
    )
    mouth = _CAVITY + (_TEETH - _CAVITY) * teeth + (_TONGUE - _CAVITY) * tongue
    waves = np.sin(2 * np.pi * (pixels[None, :] + 0.6 * pixels[:, None]) / 120 + face.shading_phase)
    skin = (face.skin + face.shading * waves)[None]
    picture = (
        skin * (1 - outer) + face.skin * face.lip_tone * outer * (1 - inner) + mouth * inner * outer
    )
    noise = generator.standard_normal(picture.shape, dtype=np.float32)
    grey = np.clip(picture + 2 * noise, 0, 255).astype(np.uint8)
    flat = (half_width[:, 0], half_height[:, 0], thickness[:, 0])
    landmarks = _lip_landmarks(*flat, centre) * size / _UNITS
    return grey, landmarks.astype(np.float32)
