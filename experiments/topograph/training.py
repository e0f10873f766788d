"""Training of one segmentation network with one objective."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ritornello.common.data.batches import epoch_rows
from ritornello.common.models.hub import resolve_device
from ritornello.common.training import FitResult, cosine_with_warmup, fit
from ritornello.experiments.topograph.residual_unet import ResidualUNet
from ritornello.experiments.topograph.unet import UNet
from ritornello.methods.topograph import SoftDiceCLDiceLoss


@dataclass(frozen=True)
class Objective:
    """(1 − β) Dice + β clDice + α topology.

    Attributes:
        alpha: weight of the topological loss once the warm-up is over.
        beta, iterations: share and erosions of clDice.
        topology: (logits, target) → scalar; None leaves it out.
    """

    alpha: float = 0.0
    beta: float = 0.0
    iterations: int = 5
    topology: nn.Module | None = None

    def prepare(self) -> None:
        """Calls the topological loss once: what it lacks is told before anything is trained."""
        if self.topology is not None and self.alpha:
            self.topology(torch.zeros(1, 2, 8, 8), torch.zeros(1, 8, 8, dtype=torch.long))

    def __call__(self, logits: Tensor, target: Tensor, *, warm: bool) -> Float[Tensor, ""]:
        loss = SoftDiceCLDiceLoss(self.beta, iterations=self.iterations)(logits, target)
        if warm and self.topology is not None and self.alpha:
            loss = loss + self.alpha * self.topology(logits, target)
        return loss


@dataclass(frozen=True)
class Recipe:
    """Network, optimiser (Adam, half a cosine) and schedule of the topological weight.

    Attributes:
        channels: widths of the U-Net's levels.
        residual_units: convolutions of a unit of the published residual U-Net; 0 is a plain U-Net.
        epochs: passes through the training set.
        warmup_epochs: passes before the topological loss counts.
        lr, final_lr: first and last learning rate.
        share_warmup: train what all objectives of a base loss have in common once, then branch.
        checkpoint_every: steps between checkpoints of an unfinished cell; 0 for none.
    """

    epochs: int
    warmup_epochs: int
    batch_size: int
    lr: float
    final_lr: float
    channels: list[int] = field(default_factory=lambda: [8, 16, 32])
    residual_units: int = 0
    share_warmup: bool = False
    checkpoint_every: int = 0
    device: str = "cpu"

    def network(self, classes: int) -> nn.Module:
        """A network with random weights."""
        if not self.residual_units:
            return UNet(self.channels, classes)
        strides = [2] + [1] * (len(self.channels) - 2)
        return ResidualUNet(self.channels, strides, self.residual_units, classes)


class _Training(pl.LightningModule):
    def __init__(self, model: nn.Module, objective: Objective, recipe: Recipe, steps: int):
        super().__init__()
        self.model, self.objective, self.recipe, self.steps = model, objective, recipe, steps

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        images, masks, warm = batch
        return self.objective(self.model(images), masks, warm=bool(warm))

    def configure_optimizers(self) -> Any:
        recipe = self.recipe
        optimizer = torch.optim.Adam(self.model.parameters(), recipe.lr)
        schedule = cosine_with_warmup(
            optimizer, steps=self.steps, final_ratio=recipe.final_lr / recipe.lr
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Trainer:
    """Trains networks on one training set from one seed, each with its own objective.

    Args:
        images, masks: the training set.
        classes: how many masks have.
        recipe: how.
        seed: of the weights and of the order of images.
        folder: where shared warm-ups are kept.
    """

    def __init__(
        self,
        images: Float[Tensor, "images 1 height width"],
        masks: Int[Tensor, "images height width"],
        classes: int,
        recipe: Recipe,
        seed: int,
        folder: Path,
    ):
        self.images, self.masks, self.classes = images, masks, classes
        self.recipe, self.seed, self.folder = recipe, seed, folder
        self.steps_per_epoch = max(1, len(images) // recipe.batch_size)

    def train(self, objective: Objective, scratch: Path) -> tuple[nn.Module, FitResult]:
        """The trained network; a run that was cut off goes on from its last checkpoint."""
        recipe = self.recipe
        if recipe.share_warmup and recipe.warmup_epochs and not any(scratch.iterdir()):
            copied = _unfinished(scratch)
            shutil.copytree(self._warmup(objective), copied, dirs_exist_ok=True)
            copied.replace(scratch)
        every = recipe.checkpoint_every
        if not every and recipe.share_warmup:
            every = self.steps_per_epoch * recipe.epochs
        return self._fit(objective, recipe.epochs, scratch, every)

    def _warmup(self, objective: Objective) -> Path:
        base = Objective(beta=objective.beta, iterations=objective.iterations)
        folder = self.folder / f"{self.seed}-{base.beta}-{base.iterations}"
        if not folder.exists():
            epochs, trained = self.recipe.warmup_epochs, _unfinished(folder)
            trained.mkdir(parents=True, exist_ok=True)
            self._fit(base, epochs, trained, self.steps_per_epoch * epochs)
            trained.replace(folder)
        return folder

    def _fit(
        self, objective: Objective, epochs: int, scratch: Path, checkpoint_every: int
    ) -> tuple[nn.Module, FitResult]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = self.recipe.network(self.classes).to(resolve_device(self.recipe.device))
        steps = self.steps_per_epoch * self.recipe.epochs
        result = fit(
            _Training(model, objective, self.recipe, steps),
            self._batch,
            steps=self.steps_per_epoch * epochs,
            seed=self.seed,
            scratch=scratch,
            checkpoint_every=checkpoint_every,
        )
        return model, result

    def _batch(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Batch `number`: images, masks, and whether the warm-up is over."""
        chosen = epoch_rows(len(self.images), self.recipe.batch_size, number, self.seed)
        warm = torch.tensor(number >= self.recipe.warmup_epochs * self.steps_per_epoch)
        return self.images[chosen], self.masks[chosen], warm


def _unfinished(folder: Path) -> Path:
    """Beside `folder`, so that renaming it to `folder` is one step that a kill cannot divide."""
    return folder.with_name(f"{folder.name}.unfinished")


@torch.no_grad()
def predict(
    model: nn.Module, images: Float[Tensor, "images 1 height width"], batch_size: int
) -> Int[Tensor, "images height width"]:
    """The class of every pixel."""
    model.eval()
    device = next(model.parameters()).device
    return torch.cat([model(x.to(device)).argmax(1).cpu() for x in images.split(batch_size)])
