"""What a cell of ARM's reproduction measures."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ritornello.common.errors import UserError
from ritornello.common.models.hub import hub_snapshot, resolve_device
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.arm.data import ImageData
from ritornello.experiments.arm.figures import figures
from ritornello.methods.arm import ARMForImageClassification, ARMForPretraining
from ritornello.methods.arm.checkpoints import initialize_from, load_official_checkpoint
from ritornello.methods.arm.patches import patchify, unpatchify

__all__ = ["ReleasedAccuracy", "StepCost", "Supervised", "Transfer", "figures"]


@dataclass
class Supervised:
    """The arm without pretraining: the classifier from scratch.

    Attributes:
        tuning: values of the tuning recipe that differ from those of the pretrained arms.
    """

    tuning: dict[str, Any] = field(default_factory=dict)


@dataclass
class Encoder:
    """Sizes that pretraining and fine-tuning share."""

    patch_size: int
    depth: int
    dim: int
    d_state: int = 16


@dataclass
class Transfer(Experiment):
    """Pretrains without labels, fine-tunes on labelled images, tests.

    An arm is `Supervised`, or builds a pretraining model from `image_size`, the encoder's sizes
    and `channels`.

    Attributes:
        data: makes the data of a seed.
        encoder: sizes of the encoder.
        pretraining, tuning: recipes.
        image_size: pixels at pretraining.
        tuning_image_size: pixels at fine-tuning and test; `image_size` if None.
        directions: scan directions of the fine-tuned models.
        labelled: numbers of labelled training images; None is all.
        head_std: deviation of a pretrained classifier's head weights before fine-tuning.
    """

    data: Callable[..., ImageData]
    encoder: dict[str, Any]
    pretraining: dict[str, Any]
    tuning: dict[str, Any]
    image_size: int
    tuning_image_size: int | None = None
    directions: list[str] = field(default_factory=lambda: ["cross"])
    labelled: list[int | None] = field(default_factory=lambda: [None])
    head_std: float = 2e-5
    device: str = "cpu"

    def __post_init__(self) -> None:
        self.sizes = vars(Encoder(**self.encoder))
        self.tuning_image_size = self.tuning_image_size or self.image_size

    def prepare(self) -> None:
        """Finds every image set, and their labels; reads the recipes."""
        from ritornello.experiments.arm.training import Recipe, TuningRecipe

        _find(self.data(seed=0))
        for name, recipe in {"pretraining": Recipe, "tuning": TuningRecipe}.items():
            try:
                recipe(**getattr(self, name))
            except TypeError as error:
                raise UserError(f"{name}: {error}") from error

    def measure(
        self, arm: Supervised | Callable[..., nn.Module], cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        """Loss of pretraining, then the accuracy of every fine-tuned model."""
        device = str(resolve_device(self.device))
        data = self.data(seed=cell.seed)
        weights, recipe = None, self.tuning
        if isinstance(arm, Supervised):
            recipe = {**self.tuning, **arm.tuning}
        else:
            torch.manual_seed(cell.seed)
            model = arm(image_size=self.image_size, channels=data.channels, **self.sizes)
            yield from self._pretrain(model, data, cell, context, device)
            weights = model.cpu().state_dict()
        for directions in self.directions:
            for labelled in self.labelled:
                coordinates = {"directions": directions, "labelled": labelled or data.size("train")}
                scratch = context.scratch / f"{directions}-{labelled}"
                model = self._tune(
                    weights, recipe, data, directions, labelled, cell.seed, scratch, device
                )
                yield from self._test(model, data, coordinates, device)

    def _pretrain(
        self, model: nn.Module, data: ImageData, cell: Cell, context: CellContext, device: str
    ) -> Iterator[Measurement]:
        from ritornello.experiments.arm.training import Recipe, pretrain

        result = pretrain(
            model,
            data,
            Recipe(**self.pretraining),
            image_size=self.image_size,
            seed=cell.seed,
            scratch=context.scratch / "pretraining",
            device=device,
        )
        losses, tail = result.losses, max(1, len(result.losses) // 20)
        for step in range(0, len(losses), tail):
            context.log(step, pretraining_loss=float(np.mean(losses[step : step + tail])))
        start, end = np.mean(losses[:3]), np.mean(losses[-tail:])
        yield Measurement("pretraining_loss", float(end))
        yield Measurement("pretraining_loss_ratio", float(end / start))
        torch.save(model.state_dict(), context.artifacts / "pretrained.pt")
        if isinstance(model, ARMForPretraining) and model.order != "random":
            yield from self._errors_by_cluster(model.cpu().eval(), data, context)

    @torch.no_grad()
    def _errors_by_cluster(
        self, model: ARMForPretraining, data: ImageData, context: CellContext
    ) -> Iterator[Measurement]:
        """Squared error of every predicted cluster over the variance of its pixels."""
        split = data.tests[0]
        indices = torch.arange(min(200, data.size(split)))
        images, _ = data.load(split, indices, "evaluate", self.image_size)
        output = model(images)
        clusters = model.fixed_order[1:]
        targets = model.targets(images)[:, clusters.flatten()]
        spread = (targets - targets.mean(0)).square().mean((0, 2)).view(clusters.shape).mean(1)
        errors = output.token_loss.mean(0).view(clusters.shape).mean(1) / spread
        for index, error in enumerate(errors.tolist(), start=2):
            yield Measurement("cluster_error", error, coordinates={"cluster": index})
        if model.target == "pixels":
            shown = slice(0, 6)
            patches = patchify(images[shown], model.patch_size)
            predicted, context_only = patches.clone(), torch.full_like(patches, math.nan)
            predicted[:, clusters.flatten()] = output.pred[shown]
            first = model.fixed_order[0]
            context_only[:, first] = patches[:, first]
            grid = model.patch_embed.grid
            strips = {"context": context_only, "prediction": predicted, "truth": patches}
            arrays = {k: unpatchify(v, model.patch_size, grid).numpy() for k, v in strips.items()}
            np.savez_compressed(context.artifacts / "reconstruction.npz", **arrays)

    def _tune(
        self,
        weights: dict[str, Tensor] | None,
        recipe: dict[str, Any],
        data: ImageData,
        directions: str,
        labelled: int | None,
        seed: int,
        scratch: Path,
        device: str,
    ) -> nn.Module:
        from ritornello.experiments.arm.training import TuningRecipe, tune

        chosen = TuningRecipe(**recipe)
        torch.manual_seed(seed + 1)
        model = ARMForImageClassification(
            self.tuning_image_size,
            num_classes=data.num_classes,
            directions=directions,
            channels=data.channels,
            drop_path_rate=chosen.drop_path_rate,
            **self.sizes,
        )
        if weights is not None:
            initialize_from(model, weights, head_std=self.head_std)
        return tune(
            model,
            data,
            chosen,
            image_size=self.tuning_image_size,
            labelled=labelled,
            seed=seed,
            scratch=scratch,
            device=device,
        )

    def _test(
        self, model: nn.Module, data: ImageData, coordinates: dict[str, Any], device: str
    ) -> Iterator[Measurement]:
        from ritornello.experiments.arm.training import correct

        for split in data.tests:
            hits = correct(model, data, split, image_size=self.tuning_image_size, device=device)
            place = {**coordinates, "test_set": split}
            yield Measurement("accuracy", float(np.mean(hits)), samples=hits, coordinates=place)


@dataclass
class StepCost(Experiment):
    """Time of one training step of each strategy, at the same encoder and image size.

    An arm builds a model from `image_size`, the encoder's sizes and `channels`. On a CPU the
    process's own time is taken, which other programs do not stretch.
    """

    encoder: dict[str, Any]
    image_size: int
    batch_size: int
    repeats: int
    device: str = "cpu"

    def measure(
        self, arm: Callable[..., nn.Module], cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        """Median milliseconds a step, and tokens times scan directions an image."""
        device = str(resolve_device(self.device))
        sizes = vars(Encoder(**self.encoder))
        torch.manual_seed(cell.seed)
        model = arm(image_size=self.image_size, channels=3, **sizes).to(device)
        images = torch.randn(self.batch_size, 3, self.image_size, self.image_size, device=device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            output = model(images)
            loss = output.square().mean() if isinstance(output, Tensor) else output.loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        scanned = []
        hooks = [
            block.mixer.register_forward_hook(
                lambda mixer, args, _: scanned.append(args[0].shape[1] * len(mixer.A_log))
            )
            for block in model.blocks
        ]
        step()
        for hook in hooks:
            hook.remove()
        times = [1e3 * _seconds(step, device) for _ in range(self.repeats)]
        yield Measurement("step_ms", float(np.median(times)), unit="ms")
        yield Measurement("scanned_tokens", float(sum(scanned)), unit="tokens an image")


def _find(data: ImageData) -> None:
    """Says before any training what of the image sets is missing."""
    if not data.tests:
        raise UserError("tests must name at least one test set")
    for split in data.tests:
        data.classes(split)
        data.size(split)


def _seconds(step: Callable[[], None], device: str) -> float:
    if not device.startswith("cuda"):
        started = time.process_time()
        step()
        return time.process_time() - started
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    step()
    torch.cuda.synchronize(device)
    return time.perf_counter() - started


@dataclass
class Checkpoint:
    """A published fine-tuned model: its file in the repository, and its sizes."""

    file: str
    depth: int
    dim: int
    image_size: int = 224


@dataclass
class ReleasedAccuracy(Experiment):
    """Accuracy of published checkpoints on every test set.

    Attributes:
        data: makes the data of a seed.
        repository: hub id or local folder that holds the files.
    """

    data: Callable[..., ImageData]
    repository: str
    device: str = "cpu"

    def prepare(self) -> None:
        """Finds the image sets and the files, or says how to get them."""
        _find(self.data(seed=0))
        hub_snapshot(self.repository)

    def measure(self, arm: Checkpoint, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Accuracy of one checkpoint."""
        from ritornello.experiments.arm.training import correct

        device, data = str(resolve_device(self.device)), self.data(seed=cell.seed)
        path = hub_snapshot(self.repository) / arm.file
        if not path.is_file():
            raise UserError(f"{self.repository} has no file {arm.file}")
        model = ARMForImageClassification(arm.image_size, 16, arm.depth, arm.dim, data.num_classes)
        model.load_state_dict(load_official_checkpoint(path))
        for split in data.tests:
            hits = correct(model, data, split, image_size=arm.image_size, device=device)
            place = {"test_set": split}
            yield Measurement("accuracy", float(np.mean(hits)), samples=hits, coordinates=place)
