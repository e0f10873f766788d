"""Trains a LightningModule so that a killed run continues to the same loss curve."""

import inspect
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from ritornello.common.errors import UserError
from ritornello.common.training.processes import (
    across_nodes,
    companions,
    join,
    started_from_outside,
)

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


_SET_HERE = {
    "accumulate_grad_batches",
    "callbacks",
    "enable_checkpointing",
    "enable_model_summary",
    "enable_progress_bar",
    "gradient_clip_val",
    "logger",
    "max_epochs",
    "max_steps",
    "max_time",
    "use_distributed_sampler",
}
_chosen: dict[str, Any] = {}


def choose_trainer(options: Mapping[str, Any]) -> None:
    """Options of every `fit` of this process, over the caller's own: one switch for all papers.

    Args:
        options: arguments of `lightning.pytorch.Trainer` that `fit` does not set, or `accumulate`.

    Raises:
        UserError: another key.
    """
    if options:
        from lightning.pytorch import Trainer

        accepted = {"accumulate", *inspect.signature(Trainer).parameters} - _SET_HERE
        if unknown := sorted(set(options) - accepted):
            raise UserError(f"trainer has no {unknown}. Accepted: {', '.join(sorted(accepted))}")
    _chosen.clear()
    _chosen.update(options)


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

    With several processes each step takes `accumulate` batches per process, in the order in which
    one process would take them: 2 processes with `accumulate=1` take the steps that 1 process takes
    with `accumulate=2`, and a checkpoint moves between them. Under torchrun the processes are
    there; otherwise they are started here, on several nodes by Slurm's srun, and end with the
    training. This process is the first of them with `strategy="ddp"` on one node. With
    `"fully_shard"` or several nodes it only waits for them: what `module` and `callbacks` keep
    beside parameters and buffers does not come back.

    Args:
        module: the model with its `configure_optimizers()`; schedulers step once per optimiser step
            (`"interval": "step"`).
        batch: the collated batch of a number (a tensor, or a mapping or tuple of tensors).
        steps: optimiser steps in all.
        scratch: the folder that holds the checkpoint, seen by all nodes; None keeps none.
        checkpoint_every: optimiser steps between checkpoints; 0 keeps none.
        accumulate: batches per optimiser step and process.
        trainer: further arguments of `lightning.pytorch.Trainer` (accelerator, devices, strategy,
            precision, ...); one process on the module's own device unless given. The module is
            left on the device where it was.

    Raises:
        ValueError: steps, accumulate or checkpoint_every out of range; a strategy that starts
            processes in a way of its own; several nodes without Slurm or torchrun.
    """
    home = next((p.device for p in module.parameters()), torch.device("cpu"))
    options = {**trainer, **_chosen}
    if "accelerator" not in options:
        options = _accelerator_of(home) | options
    options = {"devices": 1, "num_nodes": 1} | options
    accumulate = options.pop("accumulate", accumulate)
    if steps < 1 or accumulate < 1 or checkpoint_every < 0:
        raise ValueError(
            "steps and accumulate must be >= 1 and checkpoint_every >= 0, "
            f"got {steps}, {accumulate}, {checkpoint_every}"
        )
    processes = _processes(options)
    file = scratch / "training.pt" if scratch is not None and checkpoint_every else None
    take_part = partial(
        _take_part,
        module,
        batch,
        steps=steps,
        seed=seed,
        checkpoint_every=checkpoint_every,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=clip_norm,
        callbacks=callbacks or [],
        loader_workers=loader_workers,
        processes=processes,
        **options,
    )
    outside, sharded = started_from_outside(), options.get("strategy") == "fully_shard"
    if outside or (processes == 1 and not sharded):
        result = take_part(file)
    else:
        module.cpu()  # as it is handed to other processes
        if options["num_nodes"] > 1 or sharded:
            nodes = options["num_nodes"]
            result = _wait_for(take_part, module, file, scratch, nodes, processes)
        else:
            with companions(partial(take_part, file), first=1, processes=processes):
                result = take_part(file)
    if not (outside and sharded):
        module.to(home)  # Lightning leaves it on the CPU
    return result


def _accelerator_of(device: torch.device) -> dict[str, Any]:
    """Options of `Trainer` that train where the module lies."""
    if device.type == "cpu":
        return {"accelerator": "cpu"}
    name = "gpu" if device.type == "cuda" else device.type
    return {"accelerator": name, "devices": [device.index or 0]}


def _wait_for(
    take_part: Callable[[Path], FitResult],
    module: "LightningModule",
    file: Path | None,
    scratch: Path | None,
    nodes: int,
    processes: int,
) -> FitResult:
    """Leaves the training to other processes, which hand their state back as a checkpoint."""
    from ritornello.common.training.progress import read_checkpoint

    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as own:
        file = file or Path(own) / "training.pt"
        before = read_checkpoint(file)
        task = partial(take_part, file)
        if nodes > 1:
            across_nodes(task, Path(own), nodes=nodes, processes=processes)
        else:
            with companions(task, first=0, processes=processes) as children:
                join(children)
        after = read_checkpoint(file)
    assert after is not None
    module.load_state_dict(after["module"])
    return FitResult(list(after["losses"]), before["step"] if before else 0)


def _processes(options: dict[str, Any]) -> int:
    devices, strategy = options["devices"], options.get("strategy", "auto")
    if isinstance(devices, list):
        devices = len(devices)
    if not isinstance(devices, int) or devices < 1:
        raise ValueError(f"devices must be a number or a list of devices, got {devices!r}")
    if isinstance(strategy, str) and strategy.endswith(("_spawn", "_fork", "_notebook")):
        raise ValueError(f"strategy must be one like ddp or fully_shard, got {strategy!r}")
    nodes = options["num_nodes"]
    if nodes > 1 and not started_from_outside() and "SLURM_JOB_ID" not in os.environ:
        raise ValueError(f"num_nodes={nodes} needs a Slurm job with as many nodes, or torchrun")
    return devices * nodes


def _take_part(
    module: "LightningModule",
    batch: Callable[[int], Any],
    file: Path | None,
    *,
    steps: int,
    seed: int,
    checkpoint_every: int,
    loader_workers: int,
    processes: int,
    **options: Any,
) -> FitResult:
    """What one process does: takes up the checkpoint and trains from there."""
    from ritornello.common.training.progress import Progress
    from ritornello.common.training.sharding import FullyShard

    accumulate = options["accumulate_grad_batches"]
    progress = Progress(file, seed, accumulate, checkpoint_every)
    start = progress.resume(module)
    if options.get("strategy") == "fully_shard":
        options["strategy"] = FullyShard(processes)
    if start < steps:
        per_step = accumulate * processes
        loader = DataLoader(
            _Batches(batch),
            sampler=_InTurn(start * per_step, steps * per_step, processes),
            batch_size=None,
            num_workers=loader_workers,
            # A companion would spawn them, which a closure as `batch` does not survive.
            multiprocessing_context="fork" if loader_workers and sys.platform == "linux" else None,
        )
        options["callbacks"] = [progress, *options["callbacks"]]
        _train(module, loader, max_steps=steps - start, **options)
    return FitResult(progress.losses, start)


def _train(module: "LightningModule", loader: DataLoader, **options: Any) -> None:
    import lightning.pytorch as pl

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
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
