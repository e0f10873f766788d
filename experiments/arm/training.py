"""Pretraining, fine-tuning and evaluation of one model."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ritornello.common.errors import UserError
from ritornello.common.training.fit import FitResult, fit
from ritornello.common.training.schedule import cosine_with_warmup
from ritornello.experiments.arm.data import ImageData, batch_indices
from ritornello.methods.arm.recipe import layer_decay_groups


@dataclass(frozen=True)
class Recipe:
    """Optimiser and schedule: AdamW, linear warm-up, half a cosine.

    Attributes:
        steps: optimiser steps.
        batch_size: images of one forward pass; `accumulate` of them make a step.
        lr: peak learning rate.
        warmup_ratio: share of the steps in which the rate rises.
        final_lr_ratio: last rate over peak rate.
        precision: as in `lightning.pytorch.Trainer`.
        checkpoint_every: steps between checkpoints of an unfinished cell.
    """

    steps: int
    batch_size: int
    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.05
    warmup_ratio: float = 0.1
    final_lr_ratio: float = 0.0
    clip_norm: float | None = 3.0
    accumulate: int = 1
    precision: str = "32-true"
    checkpoint_every: int = 100
    loader_workers: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class TuningRecipe(Recipe):
    """Supervised training.

    Attributes:
        layer_decay: learning-rate factor per layer below the head.
        drop_path_rate: stochastic depth of the model.
        mixup, cutmix: alpha of each, 0 for none.
        ema_decay: of the averaged weights that are evaluated; 0 evaluates the last weights.
    """

    label_smoothing: float = 0.0
    layer_decay: float = 1.0
    drop_path_rate: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    ema_decay: float = 0.0


@contextmanager
def _seeded(*numbers: int) -> Iterator[None]:
    """Within it, torch, numpy and random draw from `numbers` alone; their states are put back."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        yield
    random.setstate(states[0])
    np.random.set_state(states[1])


class _Training(pl.LightningModule):
    """Optimiser and schedule of a recipe; subclasses give the loss of a batch."""

    def __init__(self, model: nn.Module, recipe: Recipe, layer_decay: float = 1.0):
        super().__init__()
        self.model, self.recipe, self.layer_decay = model, recipe, layer_decay

    def configure_optimizers(self) -> Any:
        recipe = self.recipe
        groups = layer_decay_groups(
            self.model,
            lr=recipe.lr,
            layer_decay=self.layer_decay,
            weight_decay=recipe.weight_decay,
        )
        parameters = [{k: v for k, v in group.items() if k != "names"} for group in groups]
        optimizer = torch.optim.AdamW(parameters, betas=tuple(recipe.betas), fused=True)
        schedule = cosine_with_warmup(
            optimizer,
            steps=recipe.steps,
            warmup_steps=round(recipe.steps * recipe.warmup_ratio),
            final_ratio=recipe.final_lr_ratio,
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class _Pretraining(_Training):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.model(batch[0]).loss


class _Tuning(_Training):
    def __init__(self, model: nn.Module, recipe: TuningRecipe, num_classes: int):
        super().__init__(model, recipe, recipe.layer_decay)
        self.mix = None
        if recipe.mixup or recipe.cutmix:
            from timm.data import Mixup

            self.mix = Mixup(
                recipe.mixup,
                recipe.cutmix,
                label_smoothing=recipe.label_smoothing,
                num_classes=num_classes,
            )
        self.average = None
        if recipe.ema_decay:
            self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(recipe.ema_decay))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        if self.mix is not None:
            with _seeded(int(torch.randint(2**31, (1,)))):
                images, labels = self.mix(images, labels)
            return F.cross_entropy(self.model(images), labels)
        smoothing = self.recipe.label_smoothing
        return F.cross_entropy(self.model(images), labels, label_smoothing=smoothing)

    def optimizer_step(self, *arguments: Any, **named: Any) -> None:
        super().optimizer_step(*arguments, **named)
        if self.average is not None:  # now, when no parameter is gathered from other processes
            self.average.update_parameters(self.model)


def pretrain(
    model: nn.Module,
    data: ImageData,
    recipe: Recipe,
    *,
    image_size: int,
    seed: int,
    scratch: Path,
    device: str,
) -> FitResult:
    """Trains a pretraining model on all training images, without labels."""

    def batch(number: int) -> tuple[Tensor, Tensor]:
        indices = batch_indices(data.size("train"), recipe.batch_size, number, seed)
        with _seeded(seed, number):
            return data.load("train", indices, "pretrain", image_size)

    return _fit(_Pretraining(model, recipe), batch, recipe, seed, scratch, device)


def tune(
    model: nn.Module,
    data: ImageData,
    recipe: TuningRecipe,
    *,
    image_size: int,
    labelled: int | None,
    seed: int,
    scratch: Path,
    device: str,
) -> nn.Module:
    """Trains a classifier on the first `labelled` training images (all if None).

    Returns:
        The model to evaluate: averaged weights where the recipe has them.
    """
    count = data.size("train") if labelled is None else labelled

    def batch(number: int) -> tuple[Tensor, Tensor]:
        indices = batch_indices(count, recipe.batch_size, number, seed)
        with _seeded(seed, number):
            return data.load("train", indices, "finetune", image_size)

    module = _Tuning(model, recipe, data.num_classes)
    _fit(module, batch, recipe, seed, scratch, device)
    return module.model if module.average is None else module.average.module


@torch.no_grad()
def correct(
    model: nn.Module, data: ImageData, split: str, *, image_size: int, device: str
) -> list[float]:
    """For each image of a test set, 1 if its class (or one of them) is predicted, else 0."""
    model = model.to(device).eval()
    classes, hits = data.classes(split), []
    for indices in torch.arange(data.size(split)).split(200):
        images, labels = data.load(split, indices, "evaluate", image_size)
        logits = model(images.to(device)).float().cpu()
        if classes is None:
            predicted = logits.argmax(1)
        else:
            predicted = classes[logits[:, classes].argmax(1)]
        if labels.ndim == 2:
            right = labels[torch.arange(len(labels)), predicted]
        else:
            right = predicted == labels
        hits += right.double().tolist()
    return hits


def _fit(
    module: _Training,
    batch: Callable[[int], Any],
    recipe: Recipe,
    seed: int,
    scratch: Path,
    device: str,
) -> FitResult:
    kind, index = torch.device(device).type, torch.device(device).index
    return fit(
        module,
        batch,
        steps=recipe.steps,
        seed=seed,
        scratch=scratch,
        checkpoint_every=recipe.checkpoint_every,
        accumulate=recipe.accumulate,
        clip_norm=recipe.clip_norm,
        loader_workers=recipe.loader_workers,
        accelerator="gpu" if kind == "cuda" else kind,
        devices=1 if index is None else [index],
        precision=recipe.precision,
    )
