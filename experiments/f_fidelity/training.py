"""f, f_r and ROAR's judges: trained once per run and seed, shared by arms and workers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ritornello.common.training.shared import train_once
from ritornello.experiments.f_fidelity.tasks import Data, Task
from ritornello.methods.f_fidelity import RandomRemoval, RandomRemovalFinetune, roar
from ritornello.methods.f_fidelity.finetune import Batches, train_classifier
from ritornello.methods.f_fidelity.removal import Inputs, take


@dataclass(frozen=True)
class Recipe:
    """How the networks are trained: Adam throughout.

    Attributes:
        steps, learning_rate: of f.
        finetune_steps, finetune_learning_rate: of f_r.
        beta: share removed while fine-tuning; the cap of F-Fidelity.
        distribution: `fixed` or `uniform` share up to β.
        roar_steps, roar_examples: of ROAR's judges, at f's learning rate.
        batch_size, weight_decay: of all.
        evaluate_every: steps between looks at the validation data while fine-tuning.
        checkpoint_every: steps; 0 keeps none.
        device: cpu or cuda.
    """

    steps: int
    learning_rate: float
    finetune_steps: int
    finetune_learning_rate: float
    beta: float = 0.1
    distribution: str = "fixed"
    roar_steps: int = 250
    roar_examples: int = 3000
    batch_size: int = 64
    weight_decay: float = 1e-4
    evaluate_every: int = 50
    checkpoint_every: int = 0
    device: str = "cpu"

    def optimizer(self, learning_rate: float) -> Callable[[Any], torch.optim.Optimizer]:
        """Adam at a learning rate, for any parameters."""

        def build(parameters: Any) -> torch.optim.Optimizer:
            return torch.optim.Adam(parameters, lr=learning_rate, weight_decay=self.weight_decay)

        return build

    @property
    def trainer(self) -> dict[str, Any]:
        """Arguments of Lightning's trainer."""
        accelerator = "gpu" if self.device.startswith("cuda") else "cpu"
        return {"accelerator": accelerator}


@dataclass
class Networks:
    """The trained networks of one task and seed, kept in a folder of the run."""

    task: Task
    recipe: Recipe
    data: Data
    seed: int
    folder: Path

    def original(self) -> nn.Module:
        """f."""
        return self._once(
            "f", lambda: self._fit("f", 0, self.recipe.steps, self._batches(self.seed))
        )

    def judge(self) -> nn.Module:
        """f_r."""

        def train() -> nn.Module:
            recipe = self.recipe
            finetune = RandomRemovalFinetune(
                recipe.finetune_steps,
                augmentation=RandomRemoval(
                    recipe.beta,
                    distribution=recipe.distribution,
                    removal=self.task.removal,
                ),
                optimizer=recipe.optimizer(recipe.finetune_learning_rate),
                evaluate_every=recipe.evaluate_every,
                seed=self.seed + 1,
                scratch=self.folder / f"f_r-{recipe.beta}",
                checkpoint_every=recipe.checkpoint_every,
                trainer=recipe.trainer,
            )
            held_out = self.data.validation.inputs, self.data.validation.labels
            return finetune(self.original(), self._batches(self.seed + 1), held_out).model

        return self._once(f"f_r-{self.recipe.beta}", train)

    def retrained(self, name: str, scores: Tensor) -> nn.Module:
        """ROAR's judge for the scores of the first training examples."""

        def train() -> nn.Module:
            examples = self.data.train.rows(0, len(scores))
            return roar(
                lambda batches: self._fit(name, 2, self.recipe.roar_steps, batches),
                scores,
                examples.inputs,
                examples.labels,
                batch_size=self.recipe.batch_size,
                removal=self.task.removal,
                seed=self.seed,
            )

        return self._once(name, train)

    def _fit(self, name: str, stream: int, steps: int, batches: Batches) -> nn.Module:
        """A new network, trained at f's learning rate."""
        recipe = self.recipe
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed * 10 + stream)
            untrained = self.task.network()
        return train_classifier(
            untrained,
            batches,
            steps=steps,
            optimizer=recipe.optimizer(recipe.learning_rate),
            seed=self.seed + stream,
            scratch=self.folder / name,
            checkpoint_every=recipe.checkpoint_every,
            **recipe.trainer,
        )

    def _batches(self, seed: int) -> Batches:
        train = self.data.train

        def batch(number: int) -> tuple[Inputs, Tensor]:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
            rows = torch.randint(len(train.labels), (self.recipe.batch_size,), generator=generator)
            inputs = self.task.augment(take(train.inputs, rows), generator)
            return inputs, train.labels[rows]

        return batch

    def _once(self, name: str, train: Callable[[], nn.Module]) -> nn.Module:
        """What another cell of the run has trained, or else what `train` gives."""
        weights = self.folder / f"{name}.safetensors"
        model = train_once(weights, train=train, build=self.task.network)
        return model.eval().to(self.recipe.device)
