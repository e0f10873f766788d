"""The training module of all trained parts."""

from collections.abc import Callable
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

from ritornello.common.training import cosine_with_warmup
from ritornello.methods.ac_router.baselines import SMoEDropoutRouter

Schedule = Literal["constant", "cosine"]


class Training(pl.LightningModule):
    """Adam(W) with linear warm-up, on `loss(model, batch)`.

    Args:
        model: what is trained.
        loss: gives the scalar loss of one batch.
        steps: optimiser steps in all.
        learning_rate: peak rate.
        warmup_steps: steps of linear warm-up.
        schedule: what follows it: the `constant` peak, or a `cosine` to zero.
        weight_decay: 0 uses Adam, else AdamW.
        grow: growing routers start from their first k; False leaves them as they are.
    """

    step: Tensor

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Tensor],
        *,
        steps: int,
        learning_rate: float,
        warmup_steps: int = 0,
        schedule: Schedule = "constant",
        weight_decay: float = 0.0,
        grow: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.steps = steps
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.warmup_steps, self.schedule = warmup_steps, schedule
        routers = (m for m in model.modules() if grow and isinstance(m, SMoEDropoutRouter))
        self.growing = list(routers)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))  # survives a resume

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss; growing routers are told how far training is."""
        if self.growing:
            progress = min(float(self.step) / self.steps, 1.0)
            for router in self.growing:
                router.set_progress(progress)
        return self.loss(self.model, batch)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Counts the steps: several batches make one when they are accumulated."""
        self.step += 1

    def configure_optimizers(self) -> dict[str, Any]:
        """Adam or AdamW, and the schedule by steps."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if self.weight_decay:
            optimizer: torch.optim.Optimizer = AdamW(
                trained, lr=self.learning_rate, weight_decay=self.weight_decay
            )
        else:
            optimizer = Adam(trained, lr=self.learning_rate)
        if self.schedule == "cosine":
            scheduler = cosine_with_warmup(
                optimizer, steps=self.steps, warmup_steps=self.warmup_steps
            )
        else:
            warmup = max(self.warmup_steps, 1)
            scheduler = LambdaLR(optimizer, lambda step: min((step + 1) / warmup, 1.0))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }
