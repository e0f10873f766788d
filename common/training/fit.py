"""Trains a LightningModule so that a killed run continues to the same loss curve."""

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

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

    def __init__(self, batch: Callable[[int], Any]) -> None:
        self.batch = batch

    def __getitem__(self, number: int) -> Any:
        return self.batch(number)


class _InTurn(Sampler[int]):
    """Numbers first … last − 1; process r of n takes every n-th from the r-th on."""

    def __init__(self, first: int, last: int, processes: int) -> None:
        self.first, self.last, self.processes = first, last, processes

    def __len__(self) -> int:
        return (self.last - self.first) // self.processes

    def __iter__(self) -> Iterator[int]:
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        return iter(range(self.first + rank, self.last, self.processes))


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

    With several processes each step takes one batch per process, in the order in which one process
    would accumulate them: 2 processes take the steps that 1 process takes with `accumulate=2`, and
    a checkpoint moves between them.

    Args:
        module: the model with its `configure_optimizers()`; schedulers step once per optimiser step
            (`"interval": "step"`).
        batch: the collated batch of a number (a tensor, or a mapping or tuple of tensors).
        steps: optimiser steps in all.
        scratch: the folder that holds the checkpoint; None keeps none.
        checkpoint_every: optimiser steps between checkpoints; 0 keeps none.
        accumulate: batches per optimiser step.
        trainer: further arguments of `lightning.pytorch.Trainer` (accelerator, devices, strategy,
            precision, ...); CPU and one process unless given. On one machine several processes need
            a strategy that spawns them (`ddp_spawn`), or torchrun.

    Raises:
        ValueError: steps, accumulate or checkpoint_every out of range.
    """
    if steps < 1 or accumulate < 1 or checkpoint_every < 0:
        raise ValueError(
            "steps and accumulate must be >= 1 and checkpoint_every >= 0, "
            f"got {steps}, {accumulate}, {checkpoint_every}"
        )
    from ritornello.common.training.progress import Progress

    options = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, **trainer}
    processes = _processes(options)
    with tempfile.TemporaryDirectory() as own:
        # Spawned processes hand their state back through the checkpoint.
        spawned = options.get("strategy", "auto") != "auto"
        folder = scratch if checkpoint_every else Path(own) if spawned else None
        file = None if folder is None else folder / "training.pt"
        progress = Progress(file, seed, accumulate, checkpoint_every)
        start = progress.resume(module)
        if start < steps:
            per_step = accumulate * processes
            _train(
                module,
                DataLoader(
                    _Batches(batch),
                    sampler=_InTurn(start * per_step, steps * per_step, processes),
                    batch_size=None,
                    num_workers=loader_workers,
                ),
                max_steps=steps - start,
                accumulate_grad_batches=accumulate,
                gradient_clip_val=clip_norm,
                callbacks=[progress, *(callbacks or [])],
                **options,
            )
            if spawned:
                progress.resume(module)
        return FitResult(progress.losses, start)


def _processes(options: dict[str, Any]) -> int:
    devices = options["devices"]
    if isinstance(devices, list):
        devices = len(devices)
    if not isinstance(devices, int) or devices < 1:
        raise ValueError(f"devices must be a number or a list of devices, got {devices!r}")
    return devices * options["num_nodes"]


def _train(module: "LightningModule", loader: DataLoader, **options: Any) -> None:
    import lightning.pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # Lightning's advice on loader workers and on tensors as batches does not apply here.
        warnings.filterwarnings("ignore", module="lightning")
        pl.Trainer(
            **options,
            use_distributed_sampler=False,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(module, loader)
