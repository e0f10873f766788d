"""Trains a LightningModule so that a killed run continues to the same loss curve."""

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule


@dataclass
class FitResult:
    """What training left.

    Attributes:
        losses: loss of every batch, in order, those before a resume included.
        resumed_from: the optimiser step a checkpoint was taken up at; 0 for a fresh start.
    """

    losses: list[float]
    resumed_from: int


class _Batches(Dataset):
    """Batch number i is a function of i alone: nothing has to be replayed after a resume."""

    def __init__(self, batch: Callable[[int], Any], first: int, last: int) -> None:
        self.batch, self.first, self.last = batch, first, last

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, index: int) -> Any:
        return self.batch(self.first + index)


def fit(
    module: "LightningModule",
    batch: Callable[[int], Any],
    *,
    steps: int,
    seed: int = 0,
    scratch: Path | None = None,
    checkpoint_every: int = 0,
    accumulate: int = 1,
    clip_norm: float | None = None,
    loader_workers: int = 0,
    callbacks: "list[Callback] | None" = None,
    **trainer: Any,
) -> FitResult:
    """Trains with Lightning; `training_step(batch, batch_idx)` returns the loss of one batch.

    All randomness comes from `seed` and the batch number: batch i is `batch(i)`, and torch's
    generator is seeded from (seed, i) before it, so that dropout too is the same after a resume.
    A module must keep counters of its own (an EMA's step, say) in buffers: those are restored;
    `global_step` counts from the resume on.

    Args:
        module: the model with its `configure_optimizers()`; schedulers step once per optimiser step
            (`"interval": "step"`).
        batch: the collated batch of a number (a tensor, or a mapping or tuple of tensors).
        steps: optimiser steps in all.
        scratch: the folder that holds the checkpoint; None keeps none.
        checkpoint_every: optimiser steps between checkpoints; 0 keeps none.
        accumulate: batches per optimiser step.
        trainer: further arguments of `lightning.pytorch.Trainer` (accelerator, devices, strategy,
            precision, ...); CPU and one process unless given.

    Raises:
        ValueError: steps, accumulate or checkpoint_every out of range.
    """
    if steps < 1 or accumulate < 1 or checkpoint_every < 0:
        raise ValueError(
            "steps and accumulate must be >= 1 and checkpoint_every >= 0, "
            f"got {steps}, {accumulate}, {checkpoint_every}"
        )
    import lightning.pytorch as pl

    file = scratch / "training.pt" if scratch is not None and checkpoint_every else None
    progress = _progress_callback(file, seed, accumulate, checkpoint_every)
    start = progress.resume(module)
    if start >= steps:
        return FitResult(progress.losses, start)
    loader = DataLoader(
        _Batches(batch, start * accumulate, steps * accumulate),
        batch_size=None,
        num_workers=loader_workers,
    )
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # Lightning's advice on loader workers and on tensors as batches does not apply here.
        warnings.filterwarnings("ignore", module="lightning")
        pl.Trainer(
            **{"accelerator": "cpu", "devices": 1, **trainer},
            max_steps=steps - start,
            accumulate_grad_batches=accumulate,
            gradient_clip_val=clip_norm,
            callbacks=[progress, *(callbacks or [])],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(module, loader)
    return FitResult(progress.losses, start)


def _progress_callback(file: Path | None, seed: int, accumulate: int, every: int) -> Any:
    """Seeds batches, keeps losses, and saves and restores the training state."""
    from lightning.pytorch import Callback, LightningModule, Trainer

    class Progress(Callback):
        def __init__(self) -> None:
            self.losses: list[float] = []
            self.start = 0
            self.saved: dict[str, Any] | None = None

        def resume(self, module: LightningModule) -> int:
            if file is not None and file.exists():
                self.saved = torch.load(file, map_location="cpu", weights_only=True)
                module.load_state_dict(self.saved["module"])
                self.losses, self.start = list(self.saved["losses"]), self.saved["step"]
            return self.start

        def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            if self.saved is None:
                return
            for optimizer, state in zip(trainer.optimizers, self.saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            for config, state in zip(
                trainer.lr_scheduler_configs, self.saved["schedulers"], strict=True
            ):
                config.scheduler.load_state_dict(state)
            self.saved = None

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
            number = self.start * accumulate + batch_idx
            torch.manual_seed((seed * 1_000_003 + number) % 2**63)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
            loss = outputs["loss"] if isinstance(outputs, dict) else outputs
            # Lightning hands on the loss divided by the number of accumulated batches.
            self.losses.append(float(loss) * accumulate)
            step = self.start + trainer.global_step
            if (
                file is not None
                and (batch_idx + 1) % accumulate == 0
                and step % every == 0
                and trainer.is_global_zero
            ):
                self._save(trainer, pl_module, step)

        def _save(self, trainer: Trainer, module: LightningModule, step: int) -> None:
            assert file is not None
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished = file.with_suffix(".unfinished")
            state = {
                "module": module.state_dict(),
                "optimizers": [o.state_dict() for o in trainer.optimizers],
                "schedulers": [c.scheduler.state_dict() for c in trainer.lr_scheduler_configs],
                "losses": self.losses,
                "step": step,
            }
            torch.save(state, unfinished)
            unfinished.replace(file)

    return Progress()
