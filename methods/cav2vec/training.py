"""Uptraining and fine-tuning as Lightning modules, with the paper's optimisers and schedules.

Both go into `ritornello.common.training.fit`, which resumes a killed run exactly.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ritornello.methods.cav2vec.finetuning import (
    AVForCTC,
    AVForSpeechSeq2Seq,
    SpeechBatch,
    freeze_encoder,
)
from ritornello.methods.cav2vec.pretraining import AVBatch, CAV2vecForPreTraining

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule


@dataclass(frozen=True)
class Schedule:
    """Optimiser and learning rate of a run; the defaults are those of uptraining.

    Args:
        steps: optimiser steps.
        learning_rate: peak.
        warmup_steps: linear rise.
        final_ratio: factor on the peak at the last step.
        decay: ``linear``, or ``exponential`` (tri-stage without a hold, for fine-tuning).
        eps: of Adam.
        weight_decay: decoupled.
        frozen_steps: steps during which the encoder of a recogniser stands still.
    """

    steps: int = 60_000
    learning_rate: float = 2e-4
    warmup_steps: int = 4_800
    final_ratio: float = 0.0
    decay: str = "linear"
    eps: float = 1e-6
    weight_decay: float = 0.01
    frozen_steps: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_steps <= self.steps:
            raise ValueError(
                f"warmup_steps must lie in [0, steps={self.steps}], got {self.warmup_steps}"
            )
        if self.decay not in ("linear", "exponential"):
            raise ValueError(f"decay must be 'linear' or 'exponential', got {self.decay!r}")
        if self.decay == "exponential" and self.final_ratio <= 0:
            raise ValueError(
                f"final_ratio must be positive with decay='exponential', got {self.final_ratio}"
            )

    @classmethod
    def finetuning(cls, **changes: Any) -> "Schedule":
        """The paper's fine-tuning: 60 000 steps, the encoder frozen for 48 000."""
        values = {
            "warmup_steps": 20_000,
            "final_ratio": 0.05,
            "decay": "exponential",
            "eps": 1e-8,
            "weight_decay": 0.0,
            "frozen_steps": 48_000,
        }
        return cls(**(values | changes))

    def factor(self, step: int) -> float:
        """Learning rate of a step as a share of the peak."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        left = 1 - min(1.0, (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps))
        if self.decay == "linear":
            return self.final_ratio + (1 - self.final_ratio) * left
        return self.final_ratio ** (1 - left)

    def optimizers(self, model: torch.nn.Module) -> dict[str, Any]:
        """What `LightningModule.configure_optimizers` returns."""
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=self.learning_rate,
            betas=(0.9, 0.98),
            eps=self.eps,
            weight_decay=self.weight_decay,
        )
        scheduler = LambdaLR(optimizer, self.factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def uptraining_module(
    model: CAV2vecForPreTraining,
    schedule: Schedule,
    *,
    history: list[dict[str, float]] | None = None,
) -> "LightningModule":
    """Corrupted prediction of `AVBatch`es; the teacher follows after every optimiser step.

    The loss of a batch is a sum over frames; the gradients of all batches of a step, accumulated
    and of all processes, are divided by the number of all their frames.

    Args:
        model: trained in place.
        schedule: optimiser and learning rate.
        history: receives the mean losses of every batch, by task, those before a resume included.
    """
    from lightning.pytorch import LightningModule

    kept: list[dict[str, float]] = [] if history is None else history

    class Uptraining(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.frames = 0

        def get_extra_state(self) -> list[dict[str, float]]:
            return kept

        def set_extra_state(self, state: list[dict[str, float]]) -> None:
            kept[:] = state

        def training_step(self, batch: AVBatch, batch_idx: int) -> Tensor:
            # fit() seeds torch from the batch's number: masks and mode repeat after a resume
            generator = np.random.default_rng(int(torch.randint(2**62, ())))
            output = self.model(batch, generator=generator)
            kept.append(
                {
                    name: float(loss.detach()) / max(output.counts.get(name, 1), 1)
                    for name, loss in output.losses.items()
                }
            )
            self.frames += output.n_frames
            return output.total

        def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
            frames = torch.tensor(float(self.frames), device=self.device)
            if dist.is_available() and dist.is_initialized():
                dist.all_reduce(frames)
            self.frames = 0
            # Lightning has averaged over accumulated batches, DDP over processes.
            averaged = self.trainer.accumulate_grad_batches * self.trainer.world_size
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(averaged / frames)

        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Optimizer, optimizer_closure: Any = None
        ) -> None:
            optimizer.step(closure=optimizer_closure)
            self.model.update_teacher()

        def configure_optimizers(self) -> dict[str, Any]:
            return schedule.optimizers(self.model)

    return Uptraining()


def finetuning_module(
    model: AVForCTC | AVForSpeechSeq2Seq, schedule: Schedule
) -> "LightningModule":
    """Recognition of `SpeechBatch`es."""
    from lightning.pytorch import LightningModule

    class Finetuning(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.register_buffer("taken", torch.zeros((), dtype=torch.long))

        def training_step(self, batch: SpeechBatch, batch_idx: int) -> Tensor:
            frozen = int(self.taken) < schedule.frozen_steps
            freeze_encoder(self.model, frozen)
            return self.model(batch).loss

        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Optimizer, optimizer_closure: Any = None
        ) -> None:
            optimizer.step(closure=optimizer_closure)
            self.taken += 1

        def configure_optimizers(self) -> dict[str, Any]:
            return schedule.optimizers(self.model)

    return Finetuning()
