"""What may happen to the picture: objects, hands, sensor noise, blur, pixelation (sec. 4.1).

Every corruption takes a whole clip, disturbs stretches of it and tells which frames it touched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float, UInt8

from ritornello.methods.cav2vec.occluders import Patch, augment_patch, draw_hand, draw_object
from ritornello.methods.cav2vec.pictures import gaussian_blur, overlay

Clip = UInt8[np.ndarray, "frames height width"]
Landmarks = Float[np.ndarray, "frames 20 2"]
_CROP = 96  # the crop the published patch sizes refer to
_HAND_TOP = 20


class Corrupted(NamedTuple):
    """A disturbed clip and the frames that were touched."""

    frames: np.ndarray
    flags: np.ndarray


class Corruption(Protocol):
    """Disturbs a clip; every draw comes from `generator`."""

    def __call__(
        self, frames: Clip, generator: np.random.Generator, landmarks: Landmarks | None = None
    ) -> Corrupted: ...


def draw_segments(
    num_frames: int, generator: np.random.Generator, *, frequency: int = 1
) -> list[slice]:
    """Stretches to corrupt.

    One stretch of [0.1, 0.5) of the clip; with a higher frequency the clip is cut into that many
    equal parts and each holds one of [0.3, 0.5) of the part. Too short for one frame: none.
    """
    if frequency < 1:
        raise ValueError(f"frequency must be at least 1, got {frequency}")
    low, high = (0.1, 0.5) if frequency == 1 else (0.3, 0.5)
    part = num_frames // frequency
    segments = []
    for index in range(frequency):
        shortest, longest = int(low * part), int(high * part)
        if longest <= shortest:
            length = longest
        else:
            length = int(generator.integers(shortest, longest))
        if length < 1:
            continue
        first = index * part + int(generator.integers(0, part - length + 1))
        segments.append(slice(first, first + length))
    return segments


def flagged(num_frames: int, segments: Sequence[slice]) -> Bool[np.ndarray, " frames"]:
    """True inside the segments."""
    flags = np.zeros(num_frames, dtype=bool)
    for segment in segments:
        flags[segment] = True
    return flags


def cover_lower_face(frames: np.ndarray, patch: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Lays the upper part of a patch of the frame's size over all rows from 20/96 down."""
    top = round(_HAND_TOP * frames.shape[1] / _CROP)
    rows = frames.shape[1] - top
    weight = alpha[:rows] if frames.ndim == 3 else alpha[:rows, :, None]
    result = frames.copy()
    result[:, top:] = (frames[:, top:] * (1 - weight) + patch[:rows] * weight).astype(np.uint8)
    return result


def pixelate(frames: np.ndarray, pixel_size: int) -> np.ndarray:
    """Shrinks by `pixel_size` bilinearly and enlarges again without interpolation."""
    import torch
    import torch.nn.functional as F

    if pixel_size < 1:
        raise ValueError(f"pixel_size must be at least 1, got {pixel_size}")
    grey = frames.ndim == 3
    x = torch.from_numpy(frames if not grey else frames[..., None]).permute(0, 3, 1, 2).float()
    height, width = x.shape[2:]
    small = (max(height // pixel_size, 1), max(width // pixel_size, 1))
    coarse = F.interpolate(x, small, mode="bilinear", align_corners=False).round()
    large = F.interpolate(coarse, (height, width), mode="nearest").permute(0, 2, 3, 1)
    return (large[..., 0] if grey else large).numpy().astype(np.uint8)


def pixelate_mouth(frames: np.ndarray, pixel_size: int) -> np.ndarray:
    """Pixelates the middle 40/96 of the picture only."""
    height, width = frames.shape[1:3]
    top, left = round(28 * height / _CROP), round(28 * width / _CROP)
    inside = (slice(None), slice(top, height - top), slice(left, width - left))
    result = frames.copy()
    result[inside] = pixelate(np.ascontiguousarray(frames[inside]), pixel_size)
    return result


def gaussian_noise(frames: Clip, variance: float, generator: np.random.Generator) -> Clip:
    """Adds normal noise of the given variance on the scale [0, 1], clipped."""
    noise = generator.standard_normal(frames.shape, dtype=np.float32)
    return np.clip(frames + 255 * np.sqrt(variance) * noise, 0, 255).astype(np.uint8)


def _on_segments(
    frames: Clip,
    generator: np.random.Generator,
    frequency: int,
    disturb: Callable[[Clip], np.ndarray],
) -> Corrupted:
    """Disturbs each of the drawn stretches on its own."""
    segments = draw_segments(len(frames), generator, frequency=frequency)
    result = frames.copy()
    for segment in segments:
        result[segment] = disturb(frames[segment])
    return Corrupted(result, flagged(len(frames), segments))


@dataclass(frozen=True)
class ObjectOcclusion:
    """An object that follows a lip landmark.

    Args:
        patch: makes the object of a given size; drawn shapes by default, `PatchFolder` for photos.
        sizes: least and greatest edge in pixels of a 96-pixel crop.
        frequency: stretches a clip.
    """

    patch: Callable[[int, np.random.Generator], Patch] = draw_object
    sizes: tuple[int, int] = (20, 45)
    frequency: int = 1

    def __call__(
        self, frames: Clip, generator: np.random.Generator, landmarks: Landmarks | None = None
    ) -> Corrupted:
        """Lays one object over each stretch.

        Raises:
            ValueError: no landmarks to follow.
        """
        if landmarks is None:
            raise ValueError("landmarks are needed: the object follows a lip landmark, got None")
        scale = frames.shape[1] / _CROP
        segments = draw_segments(len(frames), generator, frequency=self.frequency)
        result = frames.copy()
        for segment in segments:
            size = generator.integers(self.sizes[0], self.sizes[1], endpoint=True)
            size = max(round(int(size) * scale), 2)
            patch = augment_patch(self.patch(size, generator), generator)
            # Points 48..66 of the face: the last of the inner lip is never followed.
            followed = landmarks[segment, generator.integers(min(landmarks.shape[1], 19))]
            offset = generator.integers(10, 30) * scale
            left, top = np.round(followed - offset).astype(int).T
            part = result[segment]
            overlay(part, patch.image, patch.alpha, top, left, out=part)
        return Corrupted(result, flagged(len(frames), segments))


@dataclass(frozen=True)
class HandOcclusion:
    """A hand over the lower face (never seen in training)."""

    patch: Callable[[int, np.random.Generator], Patch] = draw_hand
    frequency: int = 3

    def __call__(
        self, frames: Clip, generator: np.random.Generator, landmarks: Landmarks | None = None
    ) -> Corrupted:
        """Lays one hand over each stretch; landmarks are not looked at."""

        def disturb(part: Clip) -> np.ndarray:
            return cover_lower_face(part, *self.patch(part.shape[1], generator))

        return _on_segments(frames, generator, self.frequency, disturb)


@dataclass(frozen=True)
class Pixelate:
    """The whole picture in coarse squares (never seen in training)."""

    pixel_size: int = 5
    frequency: int = 3

    def __call__(
        self, frames: Clip, generator: np.random.Generator, landmarks: Landmarks | None = None
    ) -> Corrupted:
        """Coarsens each stretch; landmarks are not looked at."""

        def disturb(part: Clip) -> np.ndarray:
            return pixelate(part, self.pixel_size)

        return _on_segments(frames, generator, self.frequency, disturb)


@dataclass(frozen=True)
class GaussianPixelNoise:
    """Sensor noise of a variance drawn from U(0, `max_variance`), on the scale [0, 1]."""

    max_variance: float = 0.2
    frequency: int = 1

    def __call__(
        self, frames: Clip, generator: np.random.Generator, landmarks: Landmarks | None = None
    ) -> Corrupted:
        """Adds noise to each stretch, of a strength of its own; landmarks are not looked at."""

        def disturb(part: Clip) -> np.ndarray:
            return gaussian_noise(part, generator.uniform(0, self.max_variance), generator)

        return _on_segments(frames, generator, self.frequency, disturb)


@dataclass(frozen=True)
class GaussianBlur:
    """A 7×7 blur whose standard deviation is drawn from U(`sigmas`), in pixels."""

    sigmas: tuple[float, float] = (0.1, 2.0)
    frequency: int = 1

    def __call__(
        self, frames: Clip, generator: np.random.Generator, landmarks: Landmarks | None = None
    ) -> Corrupted:
        """Blurs each stretch, with a width of its own; landmarks are not looked at."""

        def disturb(part: Clip) -> np.ndarray:
            return gaussian_blur(part, generator.uniform(*self.sigmas))

        return _on_segments(frames, generator, self.frequency, disturb)


@dataclass(frozen=True)
class SequenceNoise:
    """Sensor noise (30 %), blur (30 %) or nothing (40 %).

    Args:
        noise: the sensor noise.
        blur: the blur.
        noise_probability: chance of the former.
        blur_probability: chance of the latter.
    """

    noise: Corruption = GaussianPixelNoise()
    blur: Corruption = GaussianBlur()
    noise_probability: float = 0.3
    blur_probability: float = 0.3

    def __call__(
        self, frames: Clip, generator: np.random.Generator, landmarks: Landmarks | None = None
    ) -> Corrupted:
        """Noise, blur or nothing, by one draw."""
        choice = generator.random()
        if choice < self.noise_probability:
            return self.noise(frames, generator, landmarks)
        if choice < self.noise_probability + self.blur_probability:
            return self.blur(frames, generator, landmarks)
        return Corrupted(frames, np.zeros(len(frames), dtype=bool))


@dataclass(frozen=True)
class VideoCorruptor:
    """Several corruptions one after the other; a frame touched by any is flagged.

    Args:
        corruptions: applied in order.
        probability: chance that a clip is corrupted at all.
    """

    corruptions: Sequence[Corruption] = (ObjectOcclusion(), SequenceNoise())
    probability: float = 1.0

    def __call__(
        self, frames: Clip, generator: np.random.Generator, landmarks: Landmarks | None = None
    ) -> Corrupted:
        """The clip after all corruptions, and the frames that any of them touched.

        Raises:
            ValueError: frames that are not uint8 (frames, height, width).
        """
        if frames.ndim != 3 or frames.dtype != np.uint8:
            raise ValueError(
                f"frames must be uint8 (frames, height, width), got {frames.dtype} {frames.shape}"
            )
        flags = np.zeros(len(frames), dtype=bool)
        if generator.random() >= self.probability:
            return Corrupted(frames, flags)
        for corruption in self.corruptions:
            frames, touched = corruption(frames, generator, landmarks)
            flags = flags | touched
        return Corrupted(frames, flags)
