"""What the parts that train language models share."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ritornello.common.models.hub import resolve_device
from ritornello.common.runs import Experiment
from ritornello.common.runs.store import write_atomically
from ritornello.experiments.umup.corpus import Corpus, Source
from ritornello.experiments.umup.training import Arm, Recipe, build, train, validation_loss


@dataclass
class Trained(Experiment):
    """A part that trains language models.

    Args:
        recipe: training set-up.
        text: gives the text, or token ids.
    """

    recipe: Recipe
    text: Callable[[], Source]

    def prepare(self) -> None:
        """Says at once that there is no GPU, or no text."""
        resolve_device(self.recipe.device)
        len(self.corpus.train)

    @cached_property
    def corpus(self) -> Corpus:
        """The text in tokens."""
        return Corpus(self.text(), self.recipe.tokens, self.recipe.vocabulary)

    def final_loss(
        self, arm: Arm, recipe: Recipe, log2_rate: float, seed: int, scratch: Path
    ) -> float:
        """Held-out loss after training at one rate; remembered in `scratch` for a rerun."""
        name = repr((arm.parametrization, recipe, log2_rate))
        done = scratch / "losses.json"
        losses = json.loads(done.read_text()) if done.exists() else {}
        if name not in losses:
            folder = scratch / f"run{len(losses)}"
            model = build(arm, recipe, seed)
            train(
                model, arm, recipe, self.corpus,
                rate=2.0**log2_rate, seed=seed, scratch=folder,
            )  # fmt: skip
            losses[name] = validation_loss(model, self.corpus, recipe)
            write_atomically(done, json.dumps(losses))
            (folder / "training.pt").unlink(missing_ok=True)
        return losses[name]
