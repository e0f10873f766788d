"""MIMIC-III as MultiBench prepares it: a stay in intensive care as a table and a day of signs."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ritornello.common.cache import sha256_file
from ritornello.common.errors import UserError
from ritornello.common.runs import Cell, CellContext, Measurement
from ritornello.experiments.comm.affect import load_arrays
from ritornello.experiments.comm.arms import Architecture, Arm
from ritornello.experiments.comm.training import TensorTask
from ritornello.methods.comm import FeaturesInputAdapter
from ritornello.methods.comm.augmentation import (
    Augmentations,
    SequenceAugmentation,
)

N_STATIC, N_HOURS, N_SIGNS, N_DIAGNOSES = 5, 24, 12, 20
_LAYOUT = {
    "adm_features_all": ("stays", N_STATIC),
    "ep_tdata": ("stays", N_HOURS, N_SIGNS),
    "adm_labels_all": ("stays", 6),
    "y_icd9": ("stays", N_DIAGNOSES),
}


class Signs(nn.Module):
    """A GRU over the hours; its states are the tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(N_SIGNS, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, hours, signs) to (batch, hours, width)."""
        return self.gru(x)[0]


class LastState(nn.Module):
    """The state after the last hour, for methods without fusion."""

    def __init__(self, signs: Signs) -> None:
        super().__init__()
        self.signs = signs

    def forward(self, x: Tensor) -> Tensor:
        """(batch, hours, signs) to (batch, width)."""
        return self.signs(x)[:, -1]


def stay_architecture(width: int = 512) -> Architecture:
    """An MLP 5-10-10, one token a feature, and a GRU of this width, one token an hour."""
    table = nn.Sequential(nn.Linear(N_STATIC, 10), nn.ReLU(), nn.Linear(10, 10))
    signs = Signs(width)
    adapters = [FeaturesInputAdapter(10, width), None]
    return Architecture(
        [table, LastState(signs)], adapters, [10, width], width, whole=[table, signs]
    )


def _standardized(values: np.ndarray) -> Tensor:
    """By the mean and deviation of each feature over all stays, as MultiBench does."""
    x = np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    axes = tuple(range(x.ndim - 1))
    deviation = x.std(axis=axes)
    return torch.from_numpy((x - x.mean(axis=axes)) / np.where(deviation > 0, deviation, 1)).float()


@dataclass
class Health(TensorTask):
    """Linear probes on MIMIC-III.

    Args:
        file: MultiBench's `im.pk`, which PhysioNet's credentials are needed for.
        task: a group of ICD-9 diagnoses from 0 to 19, two classes; −1 is mortality, six classes.
        width: of the GRU and of the fusion transformer.
    """

    file: str | None = None
    task: int = 7
    width: int = 512

    def prepare(self) -> None:
        """Looks for the file."""
        super().prepare()
        if not -1 <= self.task < N_DIAGNOSES:
            raise UserError(f"task must be from -1 to {N_DIAGNOSES - 1}, got {self.task}")
        if self.file is None or not Path(self.file).is_file():
            raise UserError(
                "settings.mimic must name MultiBench's im.pk, which is given out to holders of "
                f"PhysioNet credentials for MIMIC-III only, got {self.file!r}"
            )

    @cached_property
    def splits(self) -> dict[str, tuple[list[Tensor], Tensor]]:
        """For `train` and `test` the table and signs, standardised, and the labels."""
        arrays = load_arrays(Path(self.file or ""))
        stays = len(arrays.get("ep_tdata", ()))
        for name, (_, *rest) in _LAYOUT.items():
            found = None if name not in arrays else np.shape(arrays[name])
            if found != (stays, *rest):
                raise UserError(
                    f"{name} of {self.file} must be {(stays, *rest)} as in MultiBench, got {found}"
                )
        inputs = [_standardized(arrays[n]) for n in ("adm_features_all", "ep_tdata")]  # type: ignore
        if self.task < 0:
            flags = np.asarray(arrays["adm_labels_all"])[:, 1:] > 0
            classes = np.where(flags.any(axis=1), flags.argmax(axis=1) + 1, 0)
        else:
            classes = np.asarray(arrays["y_icd9"])[:, self.task] > 0
        order = list(range(stays))
        random.Random(10).shuffle(order)  # MultiBench's split: valid, test, train
        rows = {"test": order[stays // 10 : stays // 5], "train": order[stays // 5 :]}
        labels = torch.from_numpy(classes.astype(np.int64))
        return {name: ([x[r] for x in inputs], labels[r]) for name, r in rows.items()}

    def measure(self, arm: Arm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Accuracy of the class, one sample a stay of the test set."""
        context.uses("im.pk", sha256_file(Path(self.file or "")))
        # the table gets noise alone, the signs lose hours too, each with a probability of a half
        augment = Augmentations([SequenceAugmentation().noisy, SequenceAugmentation()])
        model = self.train_on(
            arm, lambda: stay_architecture(self.width), self.splits["train"], augment, cell,
            context, 2 if self.task >= 0 else 6,
        )  # fmt: skip
        yield self.accuracy(model, self.splits["train"], self.splits["test"])
