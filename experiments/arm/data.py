"""Images to pretrain, tune and test on: digits that come with scikit-learn, or image folders."""

import json
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ritornello.common.data.augmentation import training_transform
from ritornello.common.errors import UserError

Transform = Literal["pretrain", "finetune", "evaluate"]


class ImageData(Protocol):
    """A training set and named test sets of one task.

    Attributes:
        num_classes: of the training set.
        channels: colours of an image.
        tests: names of the test sets.
    """

    num_classes: int
    channels: int
    tests: tuple[str, ...]

    def size(self, split: str) -> int:
        """Images of "train" or of a test set."""
        ...

    def load(
        self, split: str, indices: Tensor, transform: Transform, image_size: int
    ) -> tuple[Tensor, Tensor]:
        """Images (n, channels, size, size) and labels; augmentation uses torch's generator.

        Labels are (n,), or (n, classes) True for every right class where there may be several.
        """
        ...

    def classes(self, split: str) -> Tensor | None:
        """Classes that can occur in a test set, where those are not all."""
        ...


def batch_indices(count: int, batch_size: int, number: int, seed: int) -> Tensor:
    """Indices of batch `number` of an endless stream of shuffled epochs."""
    first, last = number * batch_size, (number + 1) * batch_size
    parts = []
    for epoch in range(first // count, (last - 1) // count + 1):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(count, generator=generator)
        parts.append(order[max(0, first - epoch * count) : last - epoch * count])
    return torch.cat(parts)


@cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    return images, torch.tensor(data.target)


class Digits:
    """scikit-learn's 1,797 digits of 8 x 8 pixels in [-1, 1], split at random.

    Training images are shifted by up to `shift` pixels each way.

    Args:
        seed: of the split.
        test_images: size of the test set; the rest is for training.
        shift: largest shift, pixels.
    """

    num_classes, channels, tests = 10, 1, ("test",)

    def __init__(self, seed: int, test_images: int = 600, shift: int = 1):
        images, labels = _digits()
        if not 0 < test_images < len(images):
            raise UserError(f"test_images must be in 1..{len(images) - 1}, got {test_images}")
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        parts = {"test": order[:test_images], "train": order[test_images:]}
        self.splits = {name: (images[part], labels[part]) for name, part in parts.items()}
        self.shift = shift

    def size(self, split: str) -> int:
        """Images of "train" or of a test set."""
        return len(self.splits[split][1])

    def load(
        self, split: str, indices: Tensor, transform: Transform, image_size: int
    ) -> tuple[Tensor, Tensor]:
        """See `ImageData.load`."""
        images, labels = (values[indices] for values in self.splits[split])
        if image_size != images.shape[-1]:
            raise UserError(f"digits have 8 x 8 pixels: image_size must be 8, got {image_size}")
        if transform != "evaluate" and self.shift:
            images = self._shifted(images)
        return images, labels

    def classes(self, split: str) -> None:
        """Classes that can occur in a test set, where those are not all."""
        return None

    def _shifted(self, images: Tensor) -> Tensor:
        count, side = len(images), images.shape[-1]
        padded = F.pad(images, [self.shift] * 4, value=-1.0)
        rows, columns = torch.randint(2 * self.shift + 1, (2, count, 1)) + torch.arange(side)
        picked = padded[torch.arange(count)[:, None, None], 0, rows[:, :, None], columns[:, None]]
        return picked[:, None]


class ImageFolders:
    """Folders of one sub-folder per class (ImageNet's layout), with the paper's augmentation.

    Args:
        seed: of the order in which a labelled subset is taken.
        train: folder of the training set.
        tests: folder of each test set. Their class folders are named as the training set's, or by
            their number among those (ImageNetV2); a test set with fewer classes (ImageNet-A, -R)
            is scored among its own. One that is None is left out.
        resize: shorter side, relative to the crop, at evaluation.
        relabelled: test sets judged by other labels than their folders: a JSON list for each, the
            right classes (numbers in sorted order) of every image in the order of the file names.
            Images without any are left out (ImageNet-ReaL).
    """

    channels = 3

    def __init__(
        self,
        seed: int,
        train: str,
        tests: Mapping[str, str | None],
        resize: float = 256 / 224,
        relabelled: Mapping[str, str] | None = None,
    ):
        relabelled = relabelled or {}
        if unknown := sorted(set(relabelled) - set(tests)):
            raise UserError(f"relabelled.{unknown[0]}: no test set is called so")
        self.seed, self.train, self.resize = seed, train, resize
        self.folders = {name: folder for name, folder in tests.items() if folder is not None}
        self.tests = tuple(self.folders)
        self.relabelled = {name: f for name, f in relabelled.items() if name in self.folders}

    @cached_property
    def _sets(self) -> dict[str, Any]:
        from torchvision.datasets import ImageFolder

        sets = {}
        for name, folder in {"train": self.train, **self.folders}.items():
            if not Path(folder).expanduser().is_dir():
                raise UserError(f"{name}: there is no folder {folder} of class sub-folders")
            try:
                sets[name] = ImageFolder(str(Path(folder).expanduser()))
            except FileNotFoundError as error:
                raise UserError(f"{name}: {error}") from error
        return sets

    @cached_property
    def _numbers(self) -> dict[str, list[int]]:
        """Of each set: the training set's numbers of its classes."""
        class_of = self._sets["train"].class_to_idx
        by_number = {str(number): number for number in range(len(class_of))}
        found = {}
        for name, images in self._sets.items():
            known = by_number if class_of.keys().isdisjoint(images.classes) else class_of
            if unknown := sorted(set(images.classes) - set(known)):
                raise UserError(f"{name}: {unknown[0]} is not a class folder of {self.train}")
            found[name] = [known[folder] for folder in images.classes]
        return found

    @cached_property
    def _other_labels(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Of each relabelled set: the images that have labels, and their classes as True."""
        found = {}
        for split, file in self.relabelled.items():
            if not Path(file).expanduser().is_file():
                raise UserError(f"relabelled.{split}: there is no file {file}")
            try:
                right: list[list[int]] = json.loads(Path(file).expanduser().read_text())
            except ValueError as error:
                raise UserError(f"relabelled.{split}: {file} is no JSON: {error}") from error
            samples = self._sets[split].samples
            if len(right) != len(samples):
                raise UserError(
                    f"relabelled.{split}: {file} has {len(right)} labels for {len(samples)} images"
                )
            by_name = sorted(range(len(samples)), key=lambda i: Path(samples[i][0]).name)
            labels = torch.zeros(len(samples), self.num_classes, dtype=torch.bool)
            for place, classes in zip(by_name, right, strict=True):
                labels[place, classes] = True
            found[split] = labels.any(1).nonzero()[:, 0], labels
        return found

    @cached_property
    def _order(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randperm(len(self._sets["train"]), generator=generator)

    @property
    def num_classes(self) -> int:
        """Class folders of the training set."""
        return len(self._sets["train"].classes)

    def size(self, split: str) -> int:
        """Images of "train" or of a test set."""
        if split in self.relabelled:
            return len(self._other_labels[split][0])
        return len(self._sets[split])

    def load(
        self, split: str, indices: Tensor, transform: Transform, image_size: int
    ) -> tuple[Tensor, Tensor]:
        """See `ImageData.load`."""
        source, convert = self._sets[split], self._transform(transform, image_size)
        if split == "train":
            indices = self._order[indices]
        elif split in self.relabelled:
            indices = self._other_labels[split][0][indices]
        samples = [source.samples[i] for i in indices.tolist()]
        images = torch.stack([convert(source.loader(path)) for path, _ in samples])
        if split in self.relabelled:
            return images, self._other_labels[split][1][indices]
        return images, torch.tensor([self._numbers[split][label] for _, label in samples])

    def classes(self, split: str) -> Tensor | None:
        """Classes that can occur in a test set, where those are not all."""
        present = sorted(self._numbers[split])
        return None if len(present) == self.num_classes else torch.tensor(present)

    def _transform(self, transform: Transform, size: int) -> Any:
        from torchvision.transforms import v2

        mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        if transform == "finetune":
            return training_transform(size, interpolation="bicubic", re_mode="pixel")
        bicubic = v2.InterpolationMode.BICUBIC
        if transform == "pretrain":
            cropped = [v2.RandomResizedCrop(size, (0.2, 1.0), interpolation=bicubic)]
            cropped.append(v2.RandomHorizontalFlip())
        else:
            cropped = [v2.Resize(round(size * self.resize), interpolation=bicubic)]
            cropped.append(v2.CenterCrop(size))
        pixels = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        return v2.Compose([*cropped, *pixels, v2.Normalize(mean, deviation)])
