"""Random removal as an augmentation, and the judge that is fine-tuned under it (sec. 4)."""

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from ritornello.methods.f_fidelity.curves import predict
from ritornello.methods.f_fidelity.removal import (
    Baseline,
    Inputs,
    RemovalSpec,
    Unit,
    num_examples,
    take,
)

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

Batches: TypeAlias = Callable[[int], tuple[Inputs, Tensor]]
Optimizer: TypeAlias = Callable[..., torch.optim.Optimizer]


class RandomRemoval(nn.Module):
    """Removes randomly chosen elements of every input, whatever an explainer says.

    Args:
        fraction: β, share of the removable elements.
        unit, baseline: what an element is and what replaces it.
        distribution: `fixed`: ⌊β·d⌋ of them; `uniform`: ⌊u·β·d⌋ with u ~ U(0, 1) per input.
        removal: the same and more, in place of `unit` and `baseline`.
        legacy_channel0: clear the chosen pixels in the first channel only, as the published
            transform does.
    """

    def __init__(
        self,
        fraction: float = 0.1,
        unit: Unit = "pixel",
        baseline: Baseline = "zero",
        *,
        distribution: Literal["fixed", "uniform"] = "fixed",
        removal: RemovalSpec | None = None,
        legacy_channel0: bool = False,
    ) -> None:
        super().__init__()
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must be in (0, 1], got {fraction}")
        if distribution not in ("fixed", "uniform"):
            raise ValueError(f"distribution must be fixed or uniform, got {distribution!r}")
        self.fraction = fraction
        self.distribution = distribution
        self.removal = removal or RemovalSpec(baseline, unit)
        self.legacy_channel0 = legacy_channel0
        if legacy_channel0 and (self.removal.unit != "pixel" or self.removal.channels_last):
            raise ValueError("legacy_channel0 needs removal of pixels, channels first")

    def forward(self, inputs: Inputs, generator: torch.Generator | None = None) -> Inputs:
        """Inputs with the chosen elements replaced."""
        removable = self.removal.removable(inputs)
        device = removable.device if generator is None else generator.device
        keys = torch.rand(removable.shape, generator=generator, device=device)
        keys = keys.to(removable.device).masked_fill(~removable, 2.0)
        rank = keys.argsort(1).argsort(1)
        share = self.fraction * removable.sum(1)
        if self.distribution == "uniform":
            share = share * torch.rand(len(share), generator=generator, device=device).to(share)
        keep = rank >= (share + 1e-6).floor().long()[:, None]
        removed = self.removal.apply(inputs, keep)
        if self.legacy_channel0 and isinstance(inputs, Tensor) and isinstance(removed, Tensor):
            return torch.cat([removed[:, :1], inputs[:, 1:]], 1)
        return removed


@dataclass(frozen=True)
class FinetunedJudge:
    """The judge, and what fine-tuning did to its accuracy on the validation data.

    Attributes:
        model: f_r, in evaluation mode: the checkpoint that is best under removal.
        clean_before, clean: accuracy of f and of f_r on whole inputs.
        removed_before, removed: accuracy of f and of f_r under random removal of β.
        step: optimiser step of the checkpoint; 0 if f itself was best.
    """

    model: nn.Module
    clean_before: float
    clean: float
    removed_before: float
    removed: float
    step: int


def adam(parameters: Any) -> torch.optim.Optimizer:
    """The paper's optimiser: Adam with learning rate and weight decay 1e-4."""
    return torch.optim.Adam(parameters, lr=1e-4, weight_decay=1e-4)


@dataclass(frozen=True)
class RandomRemovalFinetune:
    """The recipe that makes f_r of f: fine-tuning under random removal (sec. 4).

    Called with f, training batches and held-out data it returns the judge and leaves f as it is.

    Attributes:
        steps: optimiser steps.
        augmentation: the removal; its β is the cap of `f_fidelity`.
        optimizer: parameters → optimiser.
        evaluate_every: steps between evaluations.
        seed: of the augmentation and of dropout.
        scratch, checkpoint_every, trainer: as in `common.training.fit`; a killed run goes on from
            its checkpoint.
    """

    steps: int
    augmentation: RandomRemoval = field(default_factory=RandomRemoval)
    optimizer: Optimizer = adam
    evaluate_every: int = 50
    seed: int = 0
    scratch: Path | None = None
    checkpoint_every: int = 0
    trainer: Mapping[str, Any] = field(default_factory=dict)

    def __call__(
        self,
        model: nn.Module,
        batches: Batches,
        validation: tuple[Inputs, Int[Tensor, " examples"]],
    ) -> FinetunedJudge:
        """Fine-tunes a copy of f.

        Args:
            model: f, a trained classifier.
            batches: the training batch of a number: inputs and labels.
            validation: held-out inputs and labels that choose the checkpoint.

        Returns:
            The judge. Warns when its clean accuracy fell by more than two points: F-Fidelity then
            measures another model than f.
        """
        judge = copy.deepcopy(model)
        kept = self.scratch if self.checkpoint_every else None
        best = _Best(validation, self.augmentation, kept)
        clean_before, removed_before = best.clean_accuracy(judge), best.consider(judge, 0)

        def look(step: int) -> None:
            if step % self.evaluate_every == 0 or step == self.steps:
                best.consider(judge, step)

        train_classifier(
            judge,
            batches,
            steps=self.steps,
            optimizer=self.optimizer,
            augmentation=self.augmentation,
            after_step=look,
            seed=self.seed,
            scratch=self.scratch,
            checkpoint_every=self.checkpoint_every,
            **self.trainer,
        )
        best.load_into(judge)
        clean = best.clean_accuracy(judge)
        if clean < clean_before - 0.02:
            warnings.warn(
                f"accuracy on whole inputs fell from {clean_before:.3f} to {clean:.3f}: "
                "lower beta or the learning rate, or the judge is no longer the model",
                stacklevel=2,
            )
        return FinetunedJudge(judge, clean_before, clean, removed_before, best.accuracy, best.step)


def train_classifier(
    model: nn.Module,
    batches: Batches,
    *,
    steps: int,
    optimizer: Optimizer = adam,
    augmentation: RandomRemoval | None = None,
    after_step: Callable[[int], object] | None = None,
    seed: int = 0,
    scratch: Path | None = None,
    checkpoint_every: int = 0,
    **trainer: Any,
) -> nn.Module:
    """Trains a classifier in place by cross-entropy and returns it in evaluation mode.

    Used for f, for f_r and for ROAR's judges alike. Arguments as in `RandomRemovalFinetune`;
    `after_step` is called with the number of finished optimiser steps.
    """
    from ritornello.common.training import fit

    fit(
        _training(model, optimizer, augmentation, after_step),
        batches,
        steps=steps,
        seed=seed,
        scratch=scratch,
        checkpoint_every=checkpoint_every,
        **trainer,
    )
    return model.eval()


@torch.no_grad()
def accuracy(
    model: nn.Module, inputs: Inputs, labels: Int[Tensor, " examples"], *, batch_size: int = 256
) -> float:
    """Share of inputs that a model in evaluation mode classifies as labelled."""
    right = sum(
        int((predict(model, take(inputs, slice(i, i + batch_size))).argmax(1)
             == labels[i : i + batch_size]).sum())
        for i in range(0, num_examples(inputs), batch_size)
    )  # fmt: skip
    return right / num_examples(inputs)


class _Best:
    """Remembers the state with the best accuracy under removal, over a resume too."""

    def __init__(
        self, validation: tuple[Inputs, Tensor], augmentation: RandomRemoval, scratch: Path | None
    ) -> None:
        self.inputs, self.labels = validation
        self.removed = augmentation(self.inputs, torch.Generator().manual_seed(0))
        self.file = None if scratch is None else scratch / "best_judge.pt"
        self.accuracy, self.step = -1.0, 0
        self.state: dict[str, Tensor] = {}
        if self.file is not None and self.file.exists():
            saved = torch.load(self.file, weights_only=True)
            self.accuracy, self.step, self.state = saved["accuracy"], saved["step"], saved["state"]

    def clean_accuracy(self, model: nn.Module) -> float:
        return self._accuracy(model, self.inputs)

    def consider(self, model: nn.Module, step: int) -> float:
        found = self._accuracy(model, self.removed)
        if found > self.accuracy:
            self.accuracy, self.step = found, step
            # A copy on the CPU, so that it can be saved from any device.
            self.state = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
            if self.file is not None:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                unfinished = self.file.with_suffix(".unfinished")
                torch.save({"accuracy": found, "step": step, "state": self.state}, unfinished)
                unfinished.replace(self.file)
        return found

    def load_into(self, model: nn.Module) -> None:
        model.load_state_dict(self.state)

    def _accuracy(self, model: nn.Module, inputs: Inputs) -> float:
        training = model.training
        device = next(model.parameters()).device
        if isinstance(inputs, Tensor):
            moved = inputs.to(device)
        else:
            moved = {name: tensor.to(device) for name, tensor in inputs.items()}
        found = accuracy(model.eval(), moved, self.labels.to(device))
        model.train(training)
        return found


def _training(
    model: nn.Module,
    optimizer: Optimizer,
    augmentation: RandomRemoval | None,
    after_step: Callable[[int], object] | None,
) -> "LightningModule":
    from lightning.pytorch import LightningModule

    class Classification(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            # A buffer, since global_step counts from a resume on.
            self.register_buffer("finished", torch.zeros((), dtype=torch.long))

        def training_step(self, batch: tuple[Inputs, Tensor], batch_idx: int) -> Tensor:
            inputs, labels = batch
            if augmentation is not None:
                inputs = augmentation(inputs)
            return F.cross_entropy(predict(self.model, inputs), labels)

        def on_train_batch_end(self, *_: Any) -> None:
            self.finished += 1
            if after_step is not None:
                after_step(int(self.finished))

        def on_train_start(self) -> None:
            # The copy of a model in evaluation mode has to learn in training mode.
            self.model.train()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer(self.model.parameters())

    return Classification()
