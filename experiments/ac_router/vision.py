"""Image classifiers with MoE blocks, on clean and on attacked images."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from ritornello.common.errors import UserError
from ritornello.common.moe.statistics import load_entropy
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.ac_router.images import Images
from ritornello.experiments.ac_router.measurements import curve
from ritornello.experiments.ac_router.routers import Routers
from ritornello.methods.ac_router.attacks import fgsm, pgd, spsa
from ritornello.methods.ac_router.router import RouterFactory
from ritornello.methods.ac_router.vision import MoEClassifier, soft_moe_vit


def soft_moe(
    gate: RouterFactory, adaptive_gate: RouterFactory | None, **sizes: Any
) -> MoEClassifier:
    """A SoftMoE ViT for an arm of routers: adaptive if the arm is; it has no gates of its own."""
    return soft_moe_vit(adaptive=adaptive_gate is not None, **sizes)


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
        shifted: further test sets by name, `_partial_` nodes; scored among their own classes.
        outliers: test sets of classes that the training set lacks, told from test images by the
            model's confidence (average precision of the outliers), `_partial_` nodes.
        test_images: how many images of a test set are used; None takes all.
        eval_batch_size: images evaluated at a time (batch statistics depend on it).
        checkpoint_every, device, precision, clip_norm, loader_workers: of the training run.
    """

    model: Callable[..., MoEClassifier]
    images: Callable[[bool], Images]
    shifted: dict[str, Callable[[], Images]] = field(default_factory=dict)
    outliers: dict[str, Callable[[], Images]] = field(default_factory=dict)
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

    @cached_property
    def others(self) -> dict[str, Images]:
        """The shifted and the outlier sets by name."""
        return {name: make() for name, make in {**self.shifted, **self.outliers}.items()}

    def prepare(self) -> None:
        """Finds the images, and their classes among the training images'."""
        train, test = self.data
        known = set(train.class_names)
        for name, images in {"test images": test, **self.others}.items():
            if name not in self.outliers and (unknown := sorted(set(images.class_names) - known)):
                raise UserError(f"{name}: no training image has the class {unknown[0]}")
        if train.class_names != test.class_names:
            lacking = sorted(known - set(test.class_names))
            raise UserError(f"test images: there is none of the class {lacking[0]}")

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
        model = model.to(device).eval()
        yield from self._evaluate(model, test, device)
        yield from self._elsewhere(model, test, device)

    def _loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = model(batch[0])
        loss = functional.cross_entropy(logits, batch[1], label_smoothing=self.label_smoothing)
        return loss + self.balance_weight * model.balance_loss()

    def _evaluate(
        self, model: MoEClassifier, test: Images, device: torch.device
    ) -> Iterator[Measurement]:
        count = self._count(test)
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

    @torch.no_grad()
    def _confidences(
        self, model: nn.Module, images: Images, classes: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Per batch: probabilities over `classes`, and the labels as numbers in `classes`."""
        device = classes.device
        for indices in torch.arange(self._count(images)).split(self.eval_batch_size):
            pictures, labels = images.batch(indices)
            yield model(pictures.to(device))[:, classes].softmax(1), labels

    def _count(self, images: Images) -> int:
        return len(images) if self.test_images is None else min(self.test_images, len(images))

    def _elsewhere(
        self, model: nn.Module, test: Images, device: torch.device
    ) -> Iterator[Measurement]:
        """Accuracy on shifted sets; how well low confidence tells outliers from test images."""
        number = {name: i for i, name in enumerate(self.data[0].class_names)}
        for name in self.shifted:
            images = self.others[name]
            classes = torch.tensor([number[c] for c in images.class_names], device=device)
            right = [
                hit
                for chances, labels in self._confidences(model, images, classes)
                for hit in (chances.argmax(1).cpu() == labels).float().tolist()
            ]
            accuracy = sum(right) / len(right)
            place = {"attack": name}
            yield Measurement("accuracy", accuracy, samples=right, coordinates=place)
        for name in self.outliers:
            from sklearn.metrics import average_precision_score

            every = torch.arange(len(number), device=device)
            doubts = [
                [1 - float(c) for chances, _ in self._confidences(model, images, every)
                 for c in chances.amax(1)]
                for images in (test, self.others[name])
            ]  # fmt: skip
            truth = [0] * len(doubts[0]) + [1] * len(doubts[1])
            value = float(average_precision_score(truth, doubts[0] + doubts[1]))
            yield Measurement("outlier_precision", value, coordinates={"attack": name})
