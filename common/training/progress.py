"""The callback behind `fit`: seeds batches, keeps losses, saves and restores the training state."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ritornello.common.training.sharding import gathered, placed


def read_checkpoint(file: Path | None) -> dict[str, Any] | None:
    """What `Progress` saved; None if there is nothing."""
    if file is None or not file.exists():
        return None
    return torch.load(file, map_location="cpu", weights_only=True)


class Progress(Callback):
    """See `fit`.

    Args:
        file: the checkpoint; None keeps none.
        seed: of the run.
        accumulate: batches per optimiser step and process.
        every: optimiser steps between checkpoints; 0 saves at the end only.
    """

    def __init__(self, file: Path | None, seed: int, accumulate: int, every: int) -> None:
        self.file, self.seed, self.accumulate, self.every = file, seed, accumulate, every
        self.losses: list[float] = []
        self.start = 0
        self.saved: dict[str, Any] | None = None

    def resume(self, module: LightningModule) -> int:
        """Takes up the checkpoint if there is one; returns the optimiser steps done."""
        saved = read_checkpoint(self.file)
        if saved is not None:
            module.load_state_dict(saved["module"])
            self.losses, self.start, self.saved = list(saved["losses"]), saved["step"], saved
        return self.start

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if getattr(trainer.precision_plugin, "scaler", None) is None:
            # A fused optimiser would undo a scaling; with none to undo its gradients may be
            # clipped, which Lightning refuses in mixed precision by this mark.
            for optimizer in trainer.optimizers:
                vars(optimizer).pop("_step_supports_amp_scaling", None)
        saved = self.saved
        if saved is None:
            return
        self.saved = None
        for optimizer, state in zip(trainer.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(placed(optimizer, state))
        for config, state in zip(trainer.lr_scheduler_configs, saved["schedulers"], strict=True):
            config.scheduler.load_state_dict(state)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # The number that `fit` gives this batch, whichever process draws it.
        local = self.start * self.accumulate + batch_idx
        number = local * trainer.world_size + trainer.global_rank
        torch.manual_seed((self.seed * 1_000_003 + number) % 2**63)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        mean = trainer.strategy.reduce(loss.detach(), reduce_op="mean")
        # Lightning hands on the loss divided by the number of accumulated batches.
        self.losses.append(float(mean) * self.accumulate)
        step = self.start + trainer.global_step
        whole = (batch_idx + 1) % self.accumulate == 0
        last = trainer.global_step == trainer.max_steps
        if whole and (last or (self.every and step % self.every == 0)):
            self._save(trainer, pl_module, step)

    def _save(self, trainer: Trainer, module: LightningModule, step: int) -> None:
        if self.file is None:
            return
        state = {
            "module": gathered(module.state_dict()),
            "optimizers": [gathered(o.state_dict()) for o in trainer.optimizers],
            "schedulers": [c.scheduler.state_dict() for c in trainer.lr_scheduler_configs],
            "losses": self.losses,
            "step": step,
        }
        if not trainer.is_global_zero:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.file.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self.file)
