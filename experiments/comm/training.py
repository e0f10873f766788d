"""How a cell is trained and probed, the same for all parts and arms."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ritornello.common.data.batches import epoch_rows
from ritornello.common.errors import UserError
from ritornello.common.models.hub import resolve_device
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.common.training import cosine_with_warmup, fit
from ritornello.experiments.comm.arms import Architecture, Arm
from ritornello.methods.comm import LossOutput, linear_probe
from ritornello.methods.comm.baselines import Augment
from ritornello.methods.comm.probe import ProbeResult
from ritornello.methods.comm.training import lightning_module

Batch = tuple[list[Any], Tensor | None]


@dataclass(frozen=True)
class Recipe:
    """Optimisation (table of appendix B).

    Args:
        steps, batch, lr, weight_decay: of AdamW; arms may have a rate and a batch of their own.
        warmup_steps: of a linear warm-up before a cosine; a constant rate when None.
        checkpoint_every: steps between checkpoints of a cell; 0 keeps none.
        log_every: steps between logged losses.
    """

    steps: int
    batch: int = 64
    lr: float = 3e-4
    weight_decay: float = 1e-4
    warmup_steps: int | None = None
    checkpoint_every: int = 0
    log_every: int = 10
    device: str = "cpu"


class Data(Protocol):
    """What a part that trains on a fixed set needs."""

    n_classes: int
    multilabel: bool

    def batch(self, rows: Tensor) -> Batch: ...

    def __len__(self) -> int: ...


def rows_of_batch(count: int, batch: int, number: int, seed: int) -> Tensor:
    """Rows of batch `number`: each epoch passes through all rows once; the rest is dropped."""
    if batch > count:
        raise UserError(f"batch must be at most the {count} training samples, got {batch}")
    return epoch_rows(count, batch, number, seed)


@dataclass
class Contrastive(Experiment):
    """Trains an arm and probes what it learned.

    Args:
        recipe: optimisation.
        probe: arguments of `linear_probe`.
    """

    recipe: Recipe
    probe: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> None:
        """Says early that there is no GPU."""
        resolve_device(self.recipe.device)

    def train(
        self,
        arm: Arm,
        architecture: Callable[[], Architecture],
        batch: Callable[[int, int], Batch],
        augment: Augment,
        cell: Cell,
        context: CellContext,
        n_classes: int = 2,
        multilabel: bool = False,
        steps: int | None = None,
    ) -> nn.Module:
        """Trains a fresh model, by stages; a grid coordinate `lr` replaces the arm's rate.

        Args:
            architecture: makes the encoders; their weights come from the cell's seed.
            batch: the batch of a number and a size.
            steps: of each stage, in place of the recipe's.
        """
        recipe = self.recipe if steps is None else replace(self.recipe, steps=steps)
        size = arm.batch or recipe.batch

        def schedule(optimizer: torch.optim.Optimizer) -> Any:
            assert recipe.warmup_steps is not None
            return cosine_with_warmup(
                optimizer, steps=recipe.steps, warmup_steps=recipe.warmup_steps, final_ratio=0.01
            )

        def watch(before: int, step: int, output: LossOutput) -> None:
            if step % recipe.log_every == 0:
                values = {f"term_{k}": v.item() for k, v in enumerate(output.per_term)}
                context.log(before + step, loss=output.loss.item(), **values)

        torch.manual_seed(cell.seed)
        model: nn.Module = nn.Identity()
        for stage, model in enumerate(arm.stages(architecture(), n_classes, multilabel)):
            if not any(p.requires_grad for p in model.parameters()):
                continue
            module = lightning_module(
                model,
                augment=augment,
                lr=float(cell.coordinates.get("lr", arm.lr or recipe.lr)),
                weight_decay=recipe.weight_decay,
                schedule=None if recipe.warmup_steps is None else schedule,
                watch=partial(watch, stage * recipe.steps),
            )
            fit(
                module,
                lambda number: batch(number, size),
                steps=recipe.steps,
                seed=cell.seed,
                scratch=context.scratch / f"stage_{stage}" if stage else context.scratch,
                checkpoint_every=recipe.checkpoint_every,
                accelerator="gpu" if recipe.device.startswith("cuda") else "cpu",
            )
        return model.eval().to(recipe.device)

    def embed(
        self,
        model: nn.Module,
        inputs: Sequence[Tensor],
        batch_size: int = 512,
        load: Callable[[Tensor], Sequence[Any]] | None = None,
    ) -> dict[str, Tensor]:
        """Every kind of features that the model offers for probing.

        Args:
            inputs: the modalities; or with `load` the one tensor of rows that it loads by batches.
        """
        found: dict[str, list[Tensor]] = {}
        for first in range(0, len(inputs[0]), batch_size):
            rows: Sequence[Any] = [x[first : first + batch_size] for x in inputs]
            if load is not None:
                rows = load(rows[0])
            with torch.no_grad():
                features = model.features([x.to(self.recipe.device) for x in rows])  # type: ignore
            for name, values in features.items():
                found.setdefault(name, []).append(values.float().cpu())
        return {name: torch.cat(parts) for name, parts in found.items()}

    def probe_label(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> ProbeResult:
        """The score of a linear probe, fitted where the model was trained."""
        device = self.recipe.device
        pairs = [(x.to(device), y.to(device)) for x, y in (train, test)]
        result = linear_probe(*pairs, **self.probe)
        return replace(result, predictions=result.predictions.cpu())

    def label_scores(
        self,
        train: dict[str, Tensor],
        test: dict[str, Tensor],
        labels: dict[str, tuple[Tensor, Tensor]],
    ) -> Iterator[Measurement]:
        """Probe scores of every label.

        The first kind of features is the arm's own: it gives the metrics named by the labels,
        `unique`, the mean over the two modalities, and `…_floor`, what a probe fitted on shuffled
        labels scores. Others add their name.
        """
        for place, kind in enumerate(train):
            ending = "" if place == 0 else f"_{kind}"
            unique = []
            for name, (of_train, of_test) in labels.items():
                value = self.probe_label((train[kind], of_train), (test[kind], of_test)).value
                yield Measurement(name + ending, value, "%")
                if place == 0:
                    order = torch.randperm(
                        len(of_train), generator=torch.Generator().manual_seed(48)
                    )
                    floor = self.probe_label((train[kind], of_train[order]), (test[kind], of_test))
                    yield Measurement(f"{name}_floor", floor.value, "%")
                if name.startswith("unique"):
                    unique.append(value)
            if unique:
                yield Measurement("unique" + ending, sum(unique) / len(unique), "%")


@dataclass
class TensorTask(Contrastive):
    """A task whose samples are all in memory.

    Args:
        epochs: passes through the training set; the recipe's steps when None.
    """

    epochs: int | None = None

    def train_on(
        self,
        arm: Arm,
        architecture: Callable[[], Architecture],
        samples: tuple[list[Tensor], Tensor],
        augment: Augment,
        cell: Cell,
        context: CellContext,
        n_classes: int = 2,
    ) -> nn.Module:
        """Trains on the modalities and labels of a training set."""
        inputs, labels = samples

        def batch(number: int, size: int) -> Batch:
            rows = rows_of_batch(len(labels), size, number, cell.seed)
            return [x[rows] for x in inputs], labels[rows]

        steps = None
        if self.epochs is not None:
            steps = self.epochs * max(1, len(labels) // (arm.batch or self.recipe.batch))
        return self.train(
            arm, architecture, batch, augment, cell, context, n_classes, labels.ndim > 1,
            steps=steps,
        )  # fmt: skip

    def first_features(
        self, model: nn.Module, *splits: tuple[list[Tensor], Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """The arm's own features of each split, with its labels."""
        return [(next(iter(self.embed(model, x).values())), y) for x, y in splits]

    def accuracy(
        self,
        model: nn.Module,
        train: tuple[list[Tensor], Tensor],
        test: tuple[list[Tensor], Tensor],
    ) -> Measurement:
        """Accuracy of a linear probe, one sample a test sample."""
        pair = self.first_features(model, train, test)
        hits = 100 * (self.probe_label(*pair).predictions == test[1]).float()
        return Measurement("accuracy", float(hits.mean()), "%", hits.tolist())
