"""Vision & Touch: a robot's camera, force and joints tell its next pose, and contact."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ritornello.common.cache import sha256_file
from ritornello.common.errors import UserError
from ritornello.common.optional import require
from ritornello.common.runs import Cell, CellContext, Measurement
from ritornello.experiments.comm.arms import Architecture, Arm
from ritornello.experiments.comm.pictures import IMAGENET
from ritornello.experiments.comm.training import TensorTask
from ritornello.methods.comm import (
    FeaturesInputAdapter,
    PatchedInputAdapter,
    SimpleFeaturesInputAdapter,
)
from ritornello.methods.comm.augmentation import (
    Augmentations,
    ImageAugmentation,
    SequenceAugmentation,
)
from ritornello.methods.comm.probe import ridge_probe

TASKS = ("effector", "contact")
N_FORCES, N_READINGS, N_JOINTS, N_TARGETS = 6, 32, 8, 4
Samples = tuple[list[Tensor], Tensor]


class CameraMap(nn.Module):
    """ResNet-18 without its pooling, on bytes or on pictures in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import resnet18

        self.layers = nn.Sequential(*list(resnet18(weights=None).children())[:-2])
        mean, deviation = (torch.tensor(v)[:, None, None] for v in IMAGENET)
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, 128, 128) to (batch, 512, 4, 4)."""
        return self.layers((_in_unit(x) - self.mean) / self.deviation)


class PooledMap(nn.Module):
    """The mean over a map, for methods without fusion."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, height, width) to (batch, channels)."""
        return self.layers(x).mean(dim=(2, 3))


class Forces(nn.Module):
    """Five convolutions that halve 32 readings of six forces down to one vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in pairwise((N_FORCES, 16, 32, 64, 128, width)):
            layers += [nn.Conv1d(a, b, 2, stride=2), nn.LeakyReLU(0.1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 32, 6) to (batch, width)."""
        return self.layers(x.transpose(1, 2)).flatten(1)


def joints_encoder(width: int) -> nn.Module:
    """An MLP 8-32-64-128-width on proprioception."""
    layers: list[nn.Module] = []
    for a, b in pairwise((N_JOINTS, 32, 64, 128, width)):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers)


def _in_unit(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.float() / 255


def _augmented_picture(x: Tensor) -> Tensor:
    return ImageAugmentation()(_in_unit(x))


_AUGMENT = {
    "image": _augmented_picture,
    "force": SequenceAugmentation(),
    "proprio": SequenceAugmentation().noisy,
}


@dataclass
class Robots(TensorTask):
    """Probes on Vision & Touch, of the pose or the contact one step ahead.

    Args:
        folder: of MultiBench's hdf5 files, one an episode.
        task: `effector`, four numbers of the next pose, by ridge regression; or `contact`.
        modalities: some of image, force and proprio.
        width: of the encoders of force and joints, and of the fusion transformer.
        test: share of the files that is for testing.
        split_seed: of the split: the same for all seeds.
    """

    folder: str | None = None
    task: str = "contact"
    modalities: Sequence[str] = ("image", "proprio")
    width: int = 512
    test: float = 0.2
    split_seed: int = 0

    def prepare(self) -> None:
        """Looks for the files, and for the package that reads them."""
        super().prepare()
        if self.task not in TASKS:
            raise UserError(f"task must be one of {TASKS}, got {self.task!r}")
        if not set(self.modalities) <= set(_AUGMENT):
            raise UserError(
                f"modalities must be some of {tuple(_AUGMENT)}, got {list(self.modalities)}"
            )
        if len(self.files) < 2:
            raise UserError(
                "settings.vision_touch must name the folder of Vision & Touch's .h5 files, at "
                f"least 2, got {self.folder!r}"
            )
        require("h5py", extra="vision")

    @cached_property
    def files(self) -> list[Path]:
        """One an episode, by name."""
        return [] if self.folder is None else sorted(Path(self.folder).glob("*.h5"))

    def episode(self, file: Path) -> Samples:
        """Modalities of all steps but the last, and what holds one step later."""
        h5py = require("h5py", extra="vision")
        names = ("image", "ee_forces_continuous", "proprio", "contact")
        with h5py.File(file, "r") as opened:
            missing = [name for name in names if name not in opened]
            if missing:
                raise UserError(f"{file} must hold {names} as in MultiBench, but lacks {missing}")
            images, forces, joints, contact = (np.asarray(opened[name]) for name in names)
        if images.shape[1] != 3:
            images = images.transpose(0, 3, 1, 2)
        found = {
            "image": torch.from_numpy(images.astype(np.uint8)),
            # tanh bounds the few very large readings
            "force": torch.from_numpy(np.tanh(forces[:, -N_READINGS:])).float(),
            "proprio": torch.from_numpy(joints[:, :N_JOINTS]).float(),
        }
        if self.task == "effector":
            target = torch.from_numpy(joints[1:, :N_TARGETS]).float()
        else:
            touched = contact.reshape(len(contact), -1).sum(axis=1) > 0
            target = torch.from_numpy(touched[1:].astype(np.int64))
        return [found[m][:-1] for m in self.modalities], target

    @cached_property
    def splits(self) -> dict[str, Samples]:
        """For `train` and `test` the modalities and targets; no episode is in both."""
        order = np.random.default_rng(self.split_seed).permutation(len(self.files))
        held = min(max(1, round(self.test * len(order))), len(order) - 1)
        found = {}
        for name, rows in (("test", order[:held]), ("train", order[held:])):
            episodes = [self.episode(self.files[row]) for row in rows]
            inputs = zip(*(x for x, _ in episodes), strict=True)
            found[name] = (
                [torch.cat(pieces) for pieces in inputs],
                torch.cat([y for _, y in episodes]),
            )
        return found

    def architecture(self) -> Architecture:
        """ResNet-18's map as 16 tokens; force and joints as a token, for poses one a feature."""
        w, whole, pooled, adapters, dims = self.width, [], [], [], []
        for modality in self.modalities:
            if modality == "image":
                whole.append(CameraMap())
                pooled.append(PooledMap(whole[-1]))
                adapters.append(PatchedInputAdapter(512, w, 4))
                dims.append(512)
                continue
            whole.append(Forces(w) if modality == "force" else joints_encoder(w))
            pooled.append(whole[-1])
            single = self.task == "contact"
            adapters.append(SimpleFeaturesInputAdapter() if single else FeaturesInputAdapter(w, w))
            dims.append(w)
        return Architecture(pooled, adapters, dims, w, whole=whole)

    def measure(self, arm: Arm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Accuracy of the contact, or the squared error of the pose times 10⁴."""
        for file in self.files:
            context.uses(file.name, sha256_file(file))
        train, test = self.splits["train"], self.splits["test"]
        augment = Augmentations([_AUGMENT[m] for m in self.modalities])
        outputs = 2 if self.task == "contact" else N_TARGETS
        model = self.train_on(arm, self.architecture, train, augment, cell, context, outputs)
        if self.task == "contact":
            yield self.accuracy(model, train, test)
            return
        result = ridge_probe(*self.first_features(model, train, test))
        errors = 1e4 * (result.predictions - test[1]).square().mean(dim=1)
        yield Measurement("error", float(errors.mean()), "1e-4", errors.tolist())
