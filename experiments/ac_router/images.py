"""Labelled image sets: digits that come with scikit-learn, and folders of class folders."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ritornello.common.data.augmentation import training_transform
from ritornello.common.errors import UserError


class Images(Protocol):
    """A labelled image set with random access; pixels in [0, 1].

    Attributes:
        class_names: name of each label.
    """

    class_names: list[str]

    def __len__(self) -> int:
        """Number of images."""
        ...

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images (b, c, h, w) and labels (b,)."""
        ...


class Digits:
    """scikit-learn's 8×8 digits, enlarged to 16×16; every fifth image is test data.

    Args:
        train: the training images instead of the test images.
        noise: standard deviation of noise that is added: a shifted set.
        classes: digits that are kept; all when empty.
    """

    def __init__(self, train: bool = False, noise: float = 0.0, classes: tuple[int, ...] = ()):
        from sklearn.datasets import load_digits

        data = load_digits()
        kept = list(classes) or list(range(10))
        self.class_names = [str(digit) for digit in kept]
        target = torch.from_numpy(data.target)
        chosen = (torch.arange(len(target)) % 5 > 0) == train
        chosen &= torch.isin(target, torch.tensor(kept))
        images = torch.from_numpy(data.images).float()[chosen].unsqueeze(1) / 16
        images = functional.interpolate(images, size=16, mode="bilinear")
        if noise:
            generator = torch.Generator().manual_seed(0)
            images = images + noise * torch.randn(images.shape, generator=generator)
        self.images = images.clamp(0, 1)
        self.labels = torch.tensor([kept.index(int(digit)) for digit in target[chosen]])

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images (b, 1, 16, 16) and labels (b,)."""
        return self.images[indices], self.labels[indices]


class ImageFolders:
    """Folders of class folders through timm's augmentation (training) or centre crop.

    Args:
        train: `<root>/train` with augmentation; otherwise `<root>/<pattern>`.
        root: the set's folder.
        size: side of the images.
        pattern: folders with the class folders of a test set, None for the root itself; several
            are put together (ImageNet-C: `*/*`, corruption and severity).

    Raises:
        UserError: there is no such folder or class folder, or several have different classes.
    """

    def __init__(
        self, train: bool = False, *, root: str, size: int = 224, pattern: str | None = "val"
    ):
        from timm.data import create_transform
        from torchvision.datasets import ImageFolder

        top = Path(root).expanduser()
        wanted = "train" if train else pattern
        found = [top] if wanted is None else sorted(top.glob(wanted))
        folders = [folder for folder in found if folder.is_dir()]
        if not folders:
            inside = "" if wanted is None else f"{wanted}/"
            raise UserError(
                f"root={root} must hold {inside}<class>/<image>: there is no such folder"
            )
        none = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
        transform = (training_transform if train else create_transform)(size, **none)
        try:
            self.folders = [ImageFolder(str(folder), transform) for folder in folders]
        except FileNotFoundError as error:
            raise UserError(f"root={root}: {error}") from error
        self.class_names = self.folders[0].classes
        if any(folder.classes != self.class_names for folder in self.folders):
            raise UserError(f"root={root}: the folders {pattern} must have the same class folders")
        lengths = torch.tensor([len(folder) for folder in self.folders])
        self.ends = lengths.cumsum(0)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images (b, 3, size, size) and labels (b,)."""
        pairs = [self._pair(int(i)) for i in indices]
        return torch.stack([image for image, _ in pairs]), torch.tensor([y for _, y in pairs])

    def _pair(self, index: int) -> tuple[Tensor, int]:
        number = int(torch.searchsorted(self.ends, index, right=True))
        begin = int(self.ends[number - 1]) if number else 0
        return self.folders[number][index - begin]
