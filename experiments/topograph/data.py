"""Images to segment, with masks: generated networks, or pairs of files."""

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ritornello.common.errors import UserError
from ritornello.experiments.topograph.networks import networks

Split = Literal["train", "test"]
Pairs = tuple[Float[Tensor, "images 1 height width"], Int[Tensor, "images height width"]]


class SegmentationData(Protocol):
    """A training and a test set of images of one size."""

    @property
    def classes(self) -> int:
        """How many classes masks have, background included."""
        ...

    def check(self) -> None:
        """Raises early what cannot work."""
        ...

    def load(self, split: Split, seed: int) -> Pairs:
        """Images and masks (0 background, 1 and more foreground)."""
        ...


@dataclass(frozen=True)
class Networks:
    """Generated networks, others for every seed.

    Attributes:
        size: height and width.
        train, test: how many images.
    """

    size: int
    train: int
    test: int
    classes: ClassVar[int] = 2

    def check(self) -> None:
        """Nothing has to be there."""

    def load(self, split: Split, seed: int) -> Pairs:
        """Images and masks of one split, others for every seed."""
        count = self.train if split == "train" else self.test
        return networks(count, self.size, seed * 2 + (split == "test"))


@dataclass(frozen=True)
class ImagePairs:
    """Grey images and masks from files, cut into square tiles without overlap.

    Attributes:
        images, masks: file patterns; sorted, the n-th mask is that of the n-th image.
        test: how many of the last pairs are the test set.
        tile: height and width of a tile; what is left at the right and lower border is dropped.
        invert: whether masks are dark on light.
        classes: how many there are, background included; with more than two, the grey value of a
            mask's pixel is the number of its class.
    """

    images: str
    masks: str
    test: int
    tile: int
    invert: bool = False
    classes: int = 2

    def __post_init__(self) -> None:
        if self.classes < 2 or (self.invert and self.classes > 2):
            raise UserError(
                f"classes must be at least 2, and 2 with invert, got {self.classes} "
                f"(invert={self.invert})"
            )

    def check(self) -> None:
        """Raises a UserError when the files are not there or do not fit each other."""
        for image, mask in self._files():
            self._pair(image, mask)

    def load(self, split: Split, seed: int) -> Pairs:
        """The tiles of one split; the seed changes nothing."""
        pairs = self._files()
        pairs = pairs[: -self.test] if split == "train" else pairs[-self.test :]
        images, masks = zip(*(self._pair(*files) for files in pairs), strict=True)
        return torch.cat(images)[:, None], torch.cat(masks).long()

    def _pair(self, image: Path, mask: Path) -> tuple[Tensor, Tensor]:
        pixels, covered = _grey(image), _grey(mask)
        if pixels.shape != covered.shape:
            raise UserError(
                f"{image} is {tuple(pixels.shape)} and its mask {mask} {tuple(covered.shape)}"
            )
        if self.classes > 2:
            covered = _many_classes(covered, mask, self.classes)
        else:
            covered = _two_classes(covered, mask) != self.invert
        return self._tiles((pixels - pixels.mean()) / pixels.std().clamp(min=1e-6)), (
            self._tiles(covered)
        )

    def _files(self) -> list[tuple[Path, Path]]:
        images, masks = (sorted(map(Path, glob.glob(p))) for p in (self.images, self.masks))
        if len(images) != len(masks) or len(images) <= self.test:
            raise UserError(
                f"images={self.images!r} and masks={self.masks!r} must match as many files each, "
                f"more than test={self.test}; they match {len(images)} and {len(masks)}"
            )
        return list(zip(images, masks, strict=True))

    def _tiles(self, image: Tensor) -> Tensor:
        rows, columns = (side // self.tile for side in image.shape)
        if not rows or not columns:
            raise UserError(f"tile={self.tile} is larger than an image of {tuple(image.shape)}")
        whole = image[: rows * self.tile, : columns * self.tile]
        tiles = whole.unflatten(0, (rows, self.tile)).unflatten(2, (columns, self.tile))
        return tiles.movedim(2, 1).flatten(0, 1)


def _grey(file: Path) -> Float[Tensor, "height width"]:
    """Grey values over 255; those of 16 and 32 bits as they are, which converting would cut off."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            deep = image.mode.startswith(("I", "F"))
            return torch.from_numpy(
                np.asarray(image if deep else image.convert("L"), dtype=np.float32) / 255
            )
    except (UnidentifiedImageError, OSError) as error:
        raise UserError(f"{file} cannot be read as an image: {error}") from error


def _many_classes(
    grey: Float[Tensor, "height width"], file: Path, classes: int
) -> Int[Tensor, "height width"]:
    """A mask whose grey values are class numbers."""
    numbers = (255 * grey).round().long()
    if numbers.max() >= classes:
        raise UserError(f"{file} has the grey value {int(numbers.max())}, and classes={classes}")
    return numbers


def _two_classes(grey: Float[Tensor, "height width"], file: Path) -> Bool[Tensor, "height width"]:
    """A mask of black and white, or of the values 0 and 1; anything else is told, not guessed."""
    if grey.max() <= 1 / 255:
        return grey > 0
    if ((grey > 0.25) & (grey < 0.75)).float().mean() > 0.05 or not 0.5 < grey.max() < 1.01:
        raise UserError(
            f"{file} must be black and white, one class against the rest; its grey values are "
            f"{', '.join(f'{255 * v:g}' for v in grey.unique()[:8])}, ..."
        )
    return grey > 0.5
