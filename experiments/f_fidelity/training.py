"""f, f_r and ROAR's judges: trained once per run and seed, shared by arms and workers."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ritornello.common.cache import file_lock
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

        def train(folder: Path) -> tuple[nn.Module, dict[str, float]]:
            recipe = self.recipe
            model = train_classifier(
                self._untrained(0),
                self._batches(self.seed),
                steps=recipe.steps,
                optimizer=recipe.optimizer(recipe.learning_rate),
                seed=self.seed,
                scratch=folder / "f",
                checkpoint_every=recipe.checkpoint_every,
                **recipe.trainer,
            )
            return model, {}

        return self._once("f", train)[0]

    def judge(self) -> tuple[nn.Module, dict[str, float]]:
        """f_r, and what fine-tuning did to its accuracy."""

        def train(folder: Path) -> tuple[nn.Module, dict[str, float]]:
            recipe = self.recipe
            finetune = RandomRemovalFinetune(
                recipe.finetune_steps,
                augmentation=RandomRemoval(
                    recipe.beta,
                    distribution=recipe.distribution,  # pyright: ignore[reportArgumentType]
                    removal=self.task.removal,
                ),
                optimizer=recipe.optimizer(recipe.finetune_learning_rate),
                evaluate_every=recipe.evaluate_every,
                seed=self.seed + 1,
                scratch=folder / f"f_r-{recipe.beta}",
                checkpoint_every=recipe.checkpoint_every,
                trainer=recipe.trainer,
            )
            held_out = self.data.validation.inputs, self.data.validation.labels
            tuned = finetune(self.original(), self._batches(self.seed + 1), held_out)
            names = ("clean_before", "clean", "removed_before", "removed", "step")
            return tuned.model, {name: float(getattr(tuned, name)) for name in names}

        return self._once(f"f_r-{self.recipe.beta}", train)

    def retrained(self, name: str, scores: Tensor) -> nn.Module:
        """ROAR's judge for the scores of the first training examples."""

        def train(folder: Path) -> tuple[nn.Module, dict[str, float]]:
            recipe = self.recipe
            examples = self.data.train.rows(0, len(scores))

            def fresh(batches: Batches) -> nn.Module:
                return train_classifier(
                    self._untrained(2),
                    batches,
                    steps=recipe.roar_steps,
                    optimizer=recipe.optimizer(recipe.learning_rate),
                    seed=self.seed + 2,
                    scratch=folder / name,
                    checkpoint_every=recipe.checkpoint_every,
                    **recipe.trainer,
                )

            model = roar(
                fresh,
                scores,
                examples.inputs,
                examples.labels,
                batch_size=recipe.batch_size,
                removal=self.task.removal,
                seed=self.seed,
            )
            return model, {}

        return self._once(name, train)[0]

    def _untrained(self, stream: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed * 10 + stream)
            return self.task.network()

    def _batches(self, seed: int) -> Batches:
        train = self.data.train

        def batch(number: int) -> tuple[Inputs, Tensor]:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
            rows = torch.randint(len(train.labels), (self.recipe.batch_size,), generator=generator)
            inputs = self.task.augment(take(train.inputs, rows), generator)
            return inputs, train.labels[rows]

        return batch

    def _once(
        self, name: str, train: Callable[[Path], tuple[nn.Module, dict[str, float]]]
    ) -> tuple[nn.Module, dict[str, float]]:
        """Loads what another cell of the run has trained, or trains it under a lock."""
        file, facts = self.folder / f"{name}.pt", self.folder / f"{name}.json"
        with file_lock(self.folder / f"{name}.lock"):
            if not file.exists():
                model, found = train(self.folder)
                facts.write_text(json.dumps(found))
                unfinished = file.with_suffix(".unfinished")
                torch.save(model.state_dict(), unfinished)
                unfinished.replace(file)
        model = self.task.network()
        model.load_state_dict(torch.load(file, weights_only=True))
        return model.eval().to(self.recipe.device), json.loads(facts.read_text())
