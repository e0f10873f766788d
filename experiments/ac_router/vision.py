"""Image classifiers with MoE blocks, on clean and on attacked images."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from ritornello.common.errors import UserError
from ritornello.common.moe.statistics import load_entropy
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.ac_router.regression import curve
from ritornello.experiments.ac_router.routers import Routers
from ritornello.methods.ac_router.attacks import fgsm, pgd, spsa
from ritornello.methods.ac_router.vision import MoEClassifier


class Images(Protocol):
    """A labelled image set with random access; pixels in [0, 1]."""

    def __len__(self) -> int:
        """Number of images."""

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images (b, c, h, w) and labels (b,)."""


class Digits:
    """scikit-learn's 8×8 digits, enlarged to 16×16; every fifth image is test data."""

    def __init__(self, train: bool) -> None:
        from sklearn.datasets import load_digits

        data = load_digits()
        chosen = (torch.arange(len(data.target)) % 5 > 0) == train
        images = torch.from_numpy(data.images).float()[chosen].unsqueeze(1) / 16
        self.images = functional.interpolate(images, size=16, mode="bilinear").clamp(0, 1)
        self.labels = torch.from_numpy(data.target)[chosen]

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images (b, 1, 16, 16) and labels (b,)."""
        return self.images[indices], self.labels[indices]


class ImageFolders:
    """`<root>/<split>/<class>/*` through timm's augmentation (training) or centre crop."""

    def __init__(self, train: bool, root: str, size: int = 224) -> None:
        from pathlib import Path

        from timm.data import create_transform
        from torchvision.datasets import ImageFolder

        folder = Path(root).expanduser() / ("train" if train else "val")
        if not folder.is_dir():
            raise UserError(f"images.root={root} must hold folders train and val, one per class")
        none = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
        augmentation = {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25} if train else {}
        transform = create_transform(size, is_training=train, **augmentation, **none)
        self.folder = ImageFolder(str(folder), transform)

    def __len__(self) -> int:
        return len(self.folder)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images (b, 3, size, size) and labels (b,)."""
        pairs = [self.folder[int(i)] for i in indices]
        return torch.stack([image for image, _ in pairs]), torch.tensor([y for _, y in pairs])


@dataclass
class Vision(Experiment):
    """Trains a Swin-MoE and measures its accuracy, clean and under attack.

    Attributes:
        model: makes the classifier from (gate, adaptive_gate); a `_partial_` node.
        images: gives the training (True) or test (False) images; a `_partial_` node.
        steps: optimiser steps of `batch_size` images.
        learning_rate: peak of AdamW's cosine, after `warmup_steps`.
        weight_decay: of AdamW.
        balance_weight: of the mean importance and load loss.
        label_smoothing: of the cross entropy.
        eps: radius of all attacks, in pixel units of [0, 1].
        attack_steps: of PGD and SPSA.
        spsa_samples: pairs of evaluations per SPSA step.
        test_images: how many test images are attacked; None takes all.
        eval_batch_size: images evaluated at a time (batch statistics depend on it).
        checkpoint_every, device, precision, clip_norm, loader_workers: of the training run.
    """

    model: Callable[..., MoEClassifier]
    images: Callable[[bool], Images]
    steps: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-3
    warmup_steps: int = 10
    weight_decay: float = 0.1
    balance_weight: float = 0.01
    label_smoothing: float = 0.1
    eps: float = 1 / 255
    attack_steps: int = 20
    spsa_samples: int = 128
    test_images: int | None = None
    eval_batch_size: int = 128
    checkpoint_every: int = 1000
    device: str = "cpu"
    precision: str = "32-true"
    clip_norm: float | None = 3.0
    loader_workers: int = 0

    @cached_property
    def data(self) -> tuple[Images, Images]:
        """Training and test images."""
        return self.images(True), self.images(False)

    def prepare(self) -> None:
        """Finds the images."""
        len(self.data[0])

    def measure(self, arm: Routers, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Trains with the arm's routers; yields clean accuracy and accuracy under each attack."""
        from ritornello.common.models.hub import resolve_device
        from ritornello.common.training import fit
        from ritornello.experiments.ac_router.training import Training

        train, test = self.data
        torch.manual_seed(cell.seed)
        model = self.model(arm.gate, arm.adaptive_gate)
        training = Training(
            model,
            self._loss,
            steps=self.steps,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            schedule="cosine",
            weight_decay=self.weight_decay,
        )

        def read(number: int) -> tuple[Tensor, Tensor]:
            generator = Generator().manual_seed(cell.seed * 1_000_003 + number)
            return train.batch(torch.randint(len(train), (self.batch_size,), generator=generator))

        device = resolve_device(self.device)
        losses = fit(
            training,
            read,
            steps=self.steps,
            seed=cell.seed,
            scratch=context.scratch,
            checkpoint_every=self.checkpoint_every,
            accelerator="gpu" if device.type == "cuda" else "cpu",
            precision=self.precision,
            clip_norm=self.clip_norm,
            loader_workers=self.loader_workers,
        ).losses
        yield from curve(losses, context)
        yield from self._evaluate(model.to(device).eval(), test, device)

    def _loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = model(batch[0])
        loss = functional.cross_entropy(logits, batch[1], label_smoothing=self.label_smoothing)
        return loss + self.balance_weight * model.balance_loss()

    def _evaluate(
        self, model: MoEClassifier, test: Images, device: torch.device
    ) -> Iterator[Measurement]:
        count = len(test) if self.test_images is None else min(self.test_images, len(test))
        right: dict[str, list[float]] = {"clean": [], "fgsm": [], "pgd": [], "spsa": []}
        generator = Generator().manual_seed(0)
        for begin in range(0, count, self.eval_batch_size):
            indices = torch.arange(begin, min(begin + self.eval_batch_size, count))
            images, labels = (x.to(device) for x in test.batch(indices))
            attacked = {
                "clean": images,
                "fgsm": fgsm(model, images, labels, eps=self.eps),
                "pgd": pgd(
                    model,
                    images,
                    labels,
                    eps=self.eps,
                    step=2.5 * self.eps / self.attack_steps,
                    steps=self.attack_steps,
                    generator=generator,
                ),
                "spsa": spsa(
                    model,
                    images,
                    labels,
                    generator=generator,
                    eps=self.eps,
                    samples=self.spsa_samples,
                    steps=self.attack_steps,
                ),
            }
            with torch.no_grad():
                for name, pictures in attacked.items():
                    right[name] += (model(pictures).argmax(1) == labels).float().tolist()
        for name, values in right.items():
            place = {"attack": name}
            accuracy = sum(values) / len(values)
            yield Measurement("accuracy", accuracy, samples=values, coordinates=place)
        for number, state in enumerate(model.states, start=1):
            experts = state.logits.shape[-1]
            entropy = float(load_entropy(state.indices, experts))
            yield Measurement("load_entropy", entropy, coordinates={"layer": number})
