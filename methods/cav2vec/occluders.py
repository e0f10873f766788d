"""Things that get in the way of a mouth: drawn shapes, drawn hands, or photos from folders."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Patch(NamedTuple):
    """A grey picture on [0, 255] and its opacity on [0, 1], both (size, size)."""

    image: Float[np.ndarray, "size size"]
    alpha: Float[np.ndarray, "size size"]


def _grid(size: int) -> tuple[np.ndarray, np.ndarray]:
    axis = (np.arange(size) + 0.5) / size * 2 - 1
    return np.meshgrid(axis, axis, indexing="ij")


def draw_object(size: int, generator: np.random.Generator) -> Patch:
    """A textured disc or convex polygon."""
    y, x = _grid(size)
    sides = int(generator.integers(3, 8))
    turn = generator.uniform(0, 2 * np.pi)
    if generator.random() < 0.4:
        distance = np.hypot(x, y)
    else:
        angles = turn + 2 * np.pi * np.arange(sides) / sides
        distance = (
            np.max([x * np.cos(a) + y * np.sin(a) for a in angles], axis=0)
            / np.cos(np.pi / sides)
            * 0.9
        )
    alpha = np.clip((0.95 - distance) * size / 2, 0, 1)
    frequency, phase = generator.uniform(1, 6), generator.uniform(0, 2 * np.pi)
    stripes = np.sin(np.pi * frequency * (x * np.cos(turn) + y * np.sin(turn)) + phase)
    grain = generator.normal(0, 12, (size, size))
    image = generator.uniform(30, 225) + generator.uniform(10, 45) * stripes + grain
    return Patch(np.clip(image, 0, 255), alpha)


def draw_hand(size: int, generator: np.random.Generator) -> Patch:
    """A skin-toned slab with the gaps of four fingers, covering the picture from side to side."""
    y, x = _grid(size)
    tone = generator.uniform(110, 205)
    tilt = generator.uniform(-0.15, 0.15)
    fingers = (x + tilt * y) * 4 + generator.uniform(0, 1)
    gaps = np.exp(-(((fingers % 1) - 0.5) ** 2) / 0.004)
    image = tone * (1 - 0.35 * gaps) + generator.normal(0, 3, (size, size))
    edge = -0.95 + 0.08 * np.cos(2 * np.pi * fingers)
    alpha = np.clip((y - edge) * size / 4, 0, 1)
    return Patch(np.clip(image, 0, 255), alpha)


def augment_patch(patch: Patch, generator: np.random.Generator) -> Patch:
    """Random turn, blur, brightness and JPEG-like coarseness, each on half of the patches."""
    from scipy.ndimage import gaussian_filter, rotate

    image, alpha = patch
    if generator.random() < 0.5:
        angle = generator.uniform(-45, 45)
        image = rotate(image, angle, reshape=False, order=1, mode="nearest")
        alpha = np.clip(rotate(alpha, angle, reshape=False, order=1), 0, 1)
    if generator.random() < 0.5:
        image = gaussian_filter(image, generator.uniform(0.2, 1.0))
    if generator.random() < 0.5:
        image = np.clip(image * generator.uniform(0.6, 1.4), 0, 255)
    if generator.random() < 0.5:
        step = generator.uniform(2, 16)
        image = np.clip(np.round(image / step) * step, 0, 255)
    return Patch(image, alpha)


class PatchFolder:
    """Photos of objects or hands with masks: two folders with files of the same names.

    Args:
        images: folder of pictures (COCO objects, 11k Hands).
        masks: folder of their masks, white where the object is.
        turn: rotate by 180°, as is done with hands that come from below.
    """

    def __init__(self, images: str | Path, masks: str | Path, *, turn: bool = False) -> None:
        by_stem = {p.stem: p for p in sorted(Path(masks).glob("*")) if p.is_file()}
        found = sorted(p for p in Path(images).glob("*") if p.stem in by_stem)
        if not found:
            raise ValueError(
                f"images and masks must hold files of the same names, got none in {images} "
                f"and {masks}"
            )
        self.turn, self._pairs = turn, [(p, by_stem[p.stem]) for p in found]

    def __len__(self) -> int:
        return len(self._pairs)

    def __call__(self, size: int, generator: np.random.Generator) -> Patch:
        """One patch, resized with a Lanczos filter."""
        from PIL import Image

        files = self._pairs[generator.integers(len(self._pairs))]
        planes = []
        for file in files:
            with Image.open(file) as picture:
                grey = picture.convert("L").resize((size, size), Image.Resampling.LANCZOS)
            planes.append(np.asarray(grey, dtype=np.float64))
        image, mask = (plane[::-1, ::-1] for plane in planes) if self.turn else planes
        return Patch(image, mask / 255)
