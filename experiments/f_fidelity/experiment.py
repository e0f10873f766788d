"""What is measured: how metrics rank degraded explainers, what judges see, sizes, photos."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ritornello.common.errors import UserError
from ritornello.common.models.hub import resolve_device
from ritornello.common.optional import require
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.f_fidelity.figures import NOISE, figures
from ritornello.experiments.f_fidelity.tasks import Data, Task
from ritornello.experiments.f_fidelity.training import Networks, Recipe
from ritornello.methods.f_fidelity import (
    degradation_curves,
    degrade,
    explanation_size,
    f_fidelity,
    fidelity,
    rank_agreement,
)
from ritornello.methods.f_fidelity.agreement import PAIRS
from ritornello.methods.f_fidelity.curves import check_sizes, predict
from ritornello.methods.f_fidelity.finetune import RandomRemoval, accuracy
from ritornello.methods.f_fidelity.removal import Inputs, take

__all__ = ["JudgeCheck", "Metric", "Photos", "Ranking", "SizeRecovery", "figures"]


@dataclass(frozen=True)
class Metric:
    """An arm: which network judges (and is explained), and how elements are dropped.

    Attributes:
        judge: `original` f, `finetuned` f_r, or `retrained` for every explainer (ROAR).
        alpha: None drops the whole explanation.
        capped: cap expected removals at the recipe's β.
    """

    judge: Literal["original", "finetuned", "retrained"]
    alpha: float | None = None
    capped: bool = False

    def __post_init__(self) -> None:
        if self.judge not in ("original", "finetuned", "retrained"):
            raise UserError(f"judge must be original, finetuned or retrained, got {self.judge!r}")


@dataclass
class _OnTask(Experiment):
    """Parts that train networks on a task.

    Attributes:
        task: the data and its network.
        recipe: how networks are trained.
        networks: name of the folder in which parts on the same task and recipe share them.
    """

    task: Task
    recipe: Recipe
    networks: str

    def prepare(self) -> None:
        self.task.check()
        resolve_device(self.recipe.device)

    def trained(self, seed: int, scratch: Path) -> Networks:
        """The networks of a seed, from what this worker has loaded before if it has."""
        loaded: dict[int, Data] = self.__dict__.setdefault("_data", {})
        if seed not in loaded:
            loaded.clear()
            loaded[seed] = self.task.data(seed)
        # One folder for all cells of a run.
        folder = scratch.parent / f"{self.networks}-{seed}"
        return Networks(self.task, self.recipe, loaded[seed], seed, folder)

    def on_device(self, inputs: Inputs) -> Inputs:
        device = self.recipe.device
        if isinstance(inputs, Tensor):
            return inputs.to(device)
        return {name: tensor.to(device) for name, tensor in inputs.items()}


@dataclass
class Ranking(_OnTask):
    """Correlation of removal curves with the known quality of degraded explainers (table 1).

    Attributes:
        explainer: (model, inputs, labels) → scores; `layer` and the like are bound already.
        sizes: shares removed.
        n_samples: masks per input and size.
        shown: test inputs whose maps are kept for the figure (images only).
    """

    explainer: Callable[[nn.Module, Any, Tensor], Tensor]
    sizes: Sequence[float]
    n_samples: int
    shown: int = 0

    def prepare(self) -> None:
        super().prepare()
        try:
            check_sizes(self.sizes)
            RandomRemoval(self.recipe.beta, distribution=self.recipe.distribution)
        except ValueError as error:
            raise UserError(str(error)) from error
        if self.n_samples < 1:
            raise UserError(f"n_samples must be at least 1, got {self.n_samples}")
        layer = getattr(self.explainer, "keywords", {}).get("layer")
        if layer is not None:
            with torch.random.fork_rng(devices=[]):
                names = [name for name, _ in self.task.network().named_modules() if name]
            if layer not in names:
                raise UserError(
                    f"explainer.layer must be a module of the network, got {layer!r}; it has: "
                    f"{', '.join(names)}"
                )

    def measure(self, arm: Metric, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Correlations by pair and size, and how well the explainer hits a known truth."""
        networks = self.trained(cell.seed, context.scratch)
        test = networks.data.test
        inputs, labels = self.on_device(test.inputs), test.labels.to(self.recipe.device)
        model = networks.judge() if arm.judge == "finetuned" else networks.original()
        scores = self._explain(model, inputs, labels)
        judges: nn.Module | list[nn.Module] = model
        if arm.judge == "retrained":
            judges = self._roar_judges(networks, model)
        curves = degradation_curves(
            judges,
            inputs,
            labels,
            scores,
            noise=NOISE,
            sizes=tuple(self.sizes),
            alpha=arm.alpha,
            beta=self.recipe.beta if arm.capped else None,
            removal=self.task.removal,
            n_samples=self.n_samples,
            seed=cell.seed,
        )
        np.savez_compressed(
            context.artifacts / "curves.npz", morf=curves.morf.mean(1), lerf=curves.lerf.mean(1)
        )
        if self.shown and isinstance(inputs, Tensor):
            maps = [
                degrade(scores[: self.shown], p, torch.Generator().manual_seed(i)).cpu()
                for i, p in enumerate(NOISE[::2])
            ]
            np.savez_compressed(
                context.artifacts / "maps.npz",
                images=inputs[: self.shown].cpu(),
                maps=torch.stack(maps),
            )
        for pair in PAIRS:
            found, by_size = rank_agreement(*curves.sides(pair)), curves.by_size(pair)
            for metric in ("macro", "micro"):
                if np.isfinite(value := getattr(found, metric)):
                    yield Measurement(metric, value, coordinates={"pair": pair})
            undefined = int(np.isnan(by_size).sum())
            yield Measurement("undefined", undefined, coordinates={"pair": pair})
            for size, rho in zip(self.sizes, by_size, strict=True):
                if np.isfinite(rho):
                    yield Measurement("rho", rho, coordinates={"pair": pair, "size": size})
        if test.truth is not None:
            yield Measurement("explainer_precision", _precision(scores, test.truth.to(scores)))
        yield Measurement("accuracy", accuracy(model, inputs, labels))
        yield Measurement("seconds", curves.seconds, unit="s")

    def _explain(self, model: nn.Module, inputs: Any, labels: Tensor) -> Tensor:
        """In pieces, since gradients of many inputs are large."""
        pieces = range(0, len(labels), 256)
        return torch.cat(
            [
                self.explainer(model, take(inputs, slice(i, i + 256)), labels[i : i + 256])
                for i in pieces
            ]
        )

    def _roar_judges(self, networks: Networks, model: nn.Module) -> list[nn.Module]:
        train = networks.data.train.rows(0, self.recipe.roar_examples)
        labels = train.labels.to(self.recipe.device)
        scores = self._explain(model, self.on_device(train.inputs), labels).cpu()
        name = f"roar-{cell_name(self.explainer)}"
        return [
            networks.retrained(
                f"{name}-{p}", degrade(scores, p, torch.Generator().manual_seed(100 + level))
            )
            for level, p in enumerate(NOISE)
        ]


@dataclass
class JudgeCheck(_OnTask):
    """What fine-tuning does to the judge: accuracy and confidence on emptied inputs (fig. 1).

    Attributes:
        fractions: shares of randomly removed elements.
    """

    fractions: Sequence[float]

    def measure(self, arm: Metric, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Accuracy and confidence on whole and on emptied inputs."""
        networks = self.trained(cell.seed, context.scratch)
        test = networks.data.test
        inputs, labels = self.on_device(test.inputs), test.labels.to(self.recipe.device)
        model = networks.judge() if arm.judge == "finetuned" else networks.original()
        yield Measurement("clean_accuracy", accuracy(model, inputs, labels))
        confidences = []
        for fraction in self.fractions:
            removal = RandomRemoval(fraction, removal=self.task.removal)
            emptied = removal(inputs, torch.Generator().manual_seed(cell.seed))
            at = {"removed": fraction}
            yield Measurement("emptied_accuracy", accuracy(model, emptied, labels), coordinates=at)
            with torch.no_grad():
                confidence = predict(model, emptied).softmax(1).amax(1)
            confidences.append(confidence.cpu())
            yield Measurement("confidence", float(confidence.mean()), coordinates=at)
        np.save(context.artifacts / "confidence.npy", torch.stack(confidences).numpy())


@dataclass
class SizeRecovery(_OnTask):
    """Reads the planted explanation's size off Fid⁺ (theorem on sizes; fig. on sizes).

    Attributes:
        sizes: shares removed.
        n_samples: masks per input and size.
        rule: `argmax` or `plateau`.
    """

    sizes: Sequence[float]
    n_samples: int
    rule: Literal["argmax", "plateau"] = "argmax"

    def measure(self, arm: Metric, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Fid⁺ and Fid⁻ by size, and the size that is read off."""
        networks = self.trained(cell.seed, context.scratch)
        test = networks.data.test
        if test.truth is None:
            raise UserError(f"{type(self.task).__name__} has no known explanations")
        model = networks.judge() if arm.judge == "finetuned" else networks.original()
        generator = torch.Generator().manual_seed(cell.seed)
        # Ties within the explanation and within the rest are broken at random.
        scores = test.truth + 0.5 * torch.rand(test.truth.shape, generator=generator)
        how = {
            "removal": self.task.removal,
            "n_samples": self.n_samples,
            "seed": cell.seed,
        }
        data = (self.on_device(test.inputs), test.labels.to(self.recipe.device))
        scores = scores.to(self.recipe.device)
        if arm.capped and arm.alpha is not None:
            beta = self.recipe.beta
            found = f_fidelity(model, *data, scores, self.sizes, alpha=arm.alpha, beta=beta, **how)
            smallest = beta / arm.alpha
        else:
            found, smallest = fidelity(model, *data, scores, self.sizes, **how), 0.0
        for size, plus, minus, error in zip(
            self.sizes, found.plus, found.minus, found.stderr, strict=True
        ):
            at = {"size": size}
            yield Measurement("fid_plus", float(plus), coordinates=at)
            yield Measurement("fid_minus", float(minus), coordinates=at)
            yield Measurement("fid_plus_stderr", float(error), coordinates=at)
        size = explanation_size(
            found.clean[:, None] - found.morf,
            self.sizes,
            rule=self.rule,
            smallest=smallest,
            generator=generator,
        )
        truth = float(test.truth.flatten(1).mean())
        yield Measurement("recovered_size", size.size)
        yield Measurement("true_size", truth)
        yield Measurement("size_error", size.size - truth)
        yield Measurement("size_interval", size.ci[1] - size.ci[0])


@dataclass
class Photos(Experiment):
    """Saliency maps and F-Fidelity of an ImageNet network on photographs.

    The labels are the network's own answers; f_r learns to keep them under removal.

    Attributes:
        model: gives the network, with mean = std = 0.5 inputs.
        pixels: side of the photographs.
        explainers: by name, (model, inputs, labels) → scores.
        finetune_steps, learning_rate, beta: of f_r.
        sizes, n_samples: of the curves.
        noise: levels of degradation.
    """

    model: Callable[[], nn.Module]
    pixels: int
    explainers: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]]
    finetune_steps: int
    learning_rate: float
    beta: float
    sizes: Sequence[float]
    n_samples: int
    noise: Sequence[float]

    def prepare(self) -> None:
        """Finds Captum and the photographs."""
        require("captum.attr", extra="vision")
        require("skimage.data", extra="assets")

    def measure(self, arm: Metric, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Areas under the curves of the photographs' own answers."""
        from ritornello.experiments.f_fidelity.photos import finetuned, load_photos

        model = self.model().eval()
        photos = load_photos(self.pixels)
        with torch.no_grad():
            answers = predict(model, photos).argmax(1)
        if arm.judge == "finetuned":
            model = finetuned(
                model, photos, answers,
                steps=self.finetune_steps, learning_rate=self.learning_rate, beta=self.beta,
                seed=cell.seed,
            )  # fmt: skip
        name = str(cell.coordinates["explainer"])
        if name not in self.explainers:
            raise UserError(f"explainer must be one of {list(self.explainers)}, got {name!r}")
        scores = self.explainers[name](model, photos, answers)
        np.savez_compressed(context.artifacts / "maps.npz", images=photos, maps=scores)
        curves = degradation_curves(
            model,
            photos,
            answers,
            scores,
            noise=tuple(self.noise),
            sizes=tuple(self.sizes),
            alpha=arm.alpha,
            beta=self.beta if arm.capped else None,
            n_samples=self.n_samples,
            reduce="prob",
            batch_size=32,
            seed=cell.seed,
        )
        np.savez_compressed(
            context.artifacts / "curves.npz", morf=curves.morf.mean(1), lerf=curves.lerf.mean(1)
        )
        for level, p in enumerate(curves.noise):
            at = {"noise": p}
            for order, values in (("morf", curves.morf), ("lerf", curves.lerf)):
                yield Measurement(f"{order}_area", float(values[level].mean()), coordinates=at)
        yield Measurement("same_answer", accuracy(model, photos, answers))


def cell_name(explainer: Any) -> str:
    """The function's name beneath its bound arguments."""
    while hasattr(explainer, "func"):
        explainer = explainer.func
    return explainer.__name__


def _precision(scores: Tensor, truth: Tensor) -> float:
    """Share of the truth among as many top scores."""
    flat, known = scores.reshape(len(scores), -1), truth.reshape(len(truth), -1)
    hits = [
        known[i, flat[i].topk(int(known[i].sum())).indices].mean().item()
        for i in range(len(flat))
        if known[i].any()
    ]
    return sum(hits) / len(hits)
