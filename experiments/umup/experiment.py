"""What is measured: learning-rate transfer, scales at initialisation, FP8 and search cost."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ritornello.common.errors import UserError
from ritornello.common.runs import Cell, CellContext, Measurement
from ritornello.common.runs.store import write_atomically
from ritornello.experiments.umup.figures import figures
from ritornello.experiments.umup.search import Interdependence, Search
from ritornello.experiments.umup.trained import Trained
from ritornello.experiments.umup.training import Arm, build, train, validation_loss
from ritornello.methods.umup import DecoderLM
from ritornello.methods.umup.fp8 import flushed_fraction
from ritornello.methods.umup.modules import Projection
from ritornello.methods.umup.sweep import interpolate_loss, parabola_optimum
from ritornello.methods.umup.track import ScaleTracker, coordinate_check, exponent_histogram

__all__ = [
    "Initialisation",
    "Interdependence",
    "LowPrecision",
    "Search",
    "Transfer",
    "figures",
]

LONGEST_LOOK = 1024  # tokens of a window whose activations and gradients are all kept


@dataclass
class Transfer(Trained):
    """Loss against learning rate at several sizes; how far the optimum moves (figs. 1, 5).

    Args:
        recipe: training set-up.
        text: gives the text.
        axis: field of the recipe that is varied: width, layers, batch or steps.
        values: of that field, smallest first.
    """

    axis: str = "width"
    values: Sequence[int] = ()

    def __post_init__(self) -> None:
        axes = ("width", "layers", "batch", "steps")
        if self.axis not in axes:
            raise UserError(f"axis must be one of {axes}, got {self.axis!r}")
        if len(self.values) < 2:
            raise UserError(f"values must hold at least two sizes, got {list(self.values)}")
        self.recipes = {v: replace(self.recipe, **{self.axis: v}) for v in self.values}

    def measure(self, arm: Arm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Losses of every size and rate, optima, their shift, the cost of reusing the first."""
        rates, curves, optima = list(arm.log2_rates), {}, {}
        for value, recipe in self.recipes.items():
            losses = [
                self.final_loss(arm, recipe, rate, cell.seed, context.scratch) for rate in rates
            ]
            for rate, loss in zip(rates, losses, strict=True):
                if math.isfinite(loss):
                    place = {self.axis: value, "log2_rate": rate}
                    yield Measurement("validation_loss", loss, self.recipe.unit, coordinates=place)
            curves[value] = [loss if math.isfinite(loss) else math.inf for loss in losses]
            optima[value] = parabola_optimum(rates, losses)
            place = {self.axis: value}
            yield Measurement("optimum", optima[value], "log2 rate", coordinates=place)
            yield Measurement("best_loss", min(curves[value]), self.recipe.unit, coordinates=place)
        first, last = self.values[0], self.values[-1]
        shift = optima[last] - optima[first]
        yield Measurement("shift", shift, "octaves")
        yield Measurement("absolute_shift", abs(shift), "octaves")
        reused = interpolate_loss(rates, curves[last], optima[first])
        yield Measurement("reuse_cost", reused - min(curves[last]), self.recipe.unit)


@dataclass
class Initialisation(Trained):
    """RMS of every tensor at initialisation by width, and what E5M2 would lose (fig. 6).

    Args:
        recipe: training set-up; its batch and tokens make the batch that is looked at.
        text: gives the text.
        widths: widths to build.
        large_vocabulary: classes of the model whose gradients are looked at for underflow.
    """

    widths: Sequence[int] = ()
    large_vocabulary: int = 50_000

    def measure(self, arm: Arm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """RMS values by width, their spread, the first update, what E5M2 would lose."""
        batch = self.corpus.batch(cell.seed, 0, self.recipe.batch).to(self.recipe.device)
        by_width: dict[int, dict[str, float]] = {}
        for width in self.widths:
            model = self._model(arm, width, cell.seed)
            by_width[width] = scales = _scales(model, batch)
            for name, value in scales.items():
                place = {"width": width, "tensor": name}
                yield Measurement("rms", value, coordinates=place)
            worst = max(abs(math.log2(value)) for value in scales.values())
            yield Measurement("worst_log2_rms", worst, "octaves", coordinates={"width": width})
            weight = scales["layers.0.feed_forward.up.weight weight"]
            yield Measurement("log2_weight_rms", math.log2(weight), coordinates={"width": width})
        wide = [scales for width, scales in by_width.items() if width >= 64]
        spread = max(
            max(scales[name] for scales in wide) / min(scales[name] for scales in wide)
            for name in wide[0]
        )
        yield Measurement("width_spread", spread)
        yield from self._first_step(arm, cell, batch)
        yield self._lost_gradients(arm, cell)

    def _model(self, arm: Arm, width: int, seed: int) -> DecoderLM:
        return build(arm, replace(self.recipe, width=width), seed).to(self.recipe.device)

    def _first_step(self, arm: Arm, cell: Cell, batch: torch.Tensor) -> Iterator[Measurement]:
        """Coordinate check: change of the logits after one update at the arm's rate."""

        def make(width: int) -> tuple[DecoderLM, torch.optim.Optimizer]:
            model = self._model(arm, width, cell.seed)
            groups = arm.parametrization.param_groups(model, 2.0**arm.log2_rate)
            return model, torch.optim.AdamW(groups)

        changes = coordinate_check(
            make,
            self.widths,
            lambda model: model.loss(batch[:, :-1], batch[:, 1:]),
            lambda model: model(batch[:, :-1]),
        )
        for width, change in changes.items():
            yield Measurement("logit_change", change, coordinates={"width": width})
            yield Measurement("log2_logit_change", math.log2(change), coordinates={"width": width})

    def _lost_gradients(self, arm: Arm, cell: Cell) -> Measurement:
        """Share of the hidden products' output gradients that a cast to E5M2 turns to zero."""
        recipe = replace(self.recipe, width=64)
        config = replace(recipe.model, vocab_size=self.large_vocabulary)
        generator = torch.Generator().manual_seed(cell.seed)
        model = DecoderLM(config, arm.parametrization, generator=generator)
        shape = (recipe.batch, recipe.tokens + 1)
        ids = torch.randint(self.large_vocabulary, shape, generator=generator)
        with ScaleTracker(model, _hidden, keep=True) as tracker:
            model.loss(ids[:, :-1], ids[:, 1:]).backward()
        grads = [t for (_, kind), t in tracker.tensors.items() if kind == "gradient"]
        return Measurement("lost_gradients", flushed_fraction(grads))


@dataclass
class LowPrecision(Trained):
    """Training with and without simulated FP8, and the scales on the way (figs. 7, 8)."""

    looks: int = 4

    def measure(self, arm: Arm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Held-out loss, RMS values on the way; exponents are kept for the figure."""
        model = build(arm, self.recipe, cell.seed)
        steps = [round(i * (self.recipe.steps - 1) / (self.looks - 1)) for i in range(self.looks)]

        def look(step: int) -> Path:
            """A file for each look: a training that is taken up again has the earlier ones."""
            return context.scratch / f"look-{step}.json"

        def watch(step: int, model: DecoderLM) -> None:
            if step in steps:
                scales = ScaleTracker(model).scales()
                rms = {f"{s.name} {s.kind}": s.rms for s in scales if math.isfinite(s.rms)}
                write_atomically(look(step), json.dumps(rms))

        losses = train(
            model, arm, self.recipe, self.corpus,
            rate=2.0**arm.log2_rate, seed=cell.seed, scratch=context.scratch, watch=watch,
        )  # fmt: skip
        for step in range(0, len(losses), 10):
            context.log(step, loss=losses[step])
        for step in sorted(set(steps)):
            if look(step).exists():  # not where a run diverged before it
                for tensor, rms in json.loads(look(step).read_text()).items():
                    place = {"tensor": tensor, "step": step}
                    yield Measurement("rms", rms, coordinates=place)
        value = validation_loss(model, self.corpus, self.recipe)
        if math.isfinite(value):
            yield Measurement("validation_loss", value, self.recipe.unit)
        batch = self.corpus.batch(cell.seed, 0, self.recipe.batch)[:, : LONGEST_LOOK + 1]
        histogram = _histograms(model, batch.to(self.recipe.device))
        (context.artifacts / "exponents.json").write_text(json.dumps(histogram))


def _hidden(name: str, module: torch.nn.Module) -> bool:
    return isinstance(module, Projection) and not name.endswith("readout")


def _scales(model: DecoderLM, batch: torch.Tensor) -> dict[str, float]:
    """RMS of hidden activations, weights and weight gradients; q, k and v taken together."""
    layers = [f"layers.{i}" for i in range(len(model.layers))]
    with ScaleTracker(model, lambda name, m: _hidden(name, m) or name in layers) as tracker:
        model.loss(batch[:, :-1], batch[:, 1:]).backward()
    squares: dict[str, list[float]] = {}
    for scale in tracker.scales():
        if scale.kind != "gradient":
            name = scale.name
            for part in ("query", "key", "value"):
                name = name.replace(f"attention.{part}", "attention.qkv")
            squares.setdefault(f"{name} {scale.kind}", []).append(scale.rms**2)
    return {name: math.sqrt(sum(parts) / len(parts)) for name, parts in squares.items()}


def _histograms(model: DecoderLM, batch: torch.Tensor) -> dict[str, dict[str, float]]:
    """Exponents of the hidden products' weights, outputs and output gradients."""
    with ScaleTracker(model, _hidden, keep=True) as tracker:
        model.loss(batch[:, :-1], batch[:, 1:]).backward()
    groups: dict[str, list[torch.Tensor]] = {"weight": [], "activation": [], "gradient": []}
    for (_, kind), tensor in tracker.tensors.items():
        groups[kind].append(tensor)
    for name, module in model.named_modules():
        if _hidden(name, module):
            groups["weight"].append(module.weight.detach())
    return {kind: _shares(tensors) for kind, tensors in groups.items()}


def _shares(tensors: list[torch.Tensor]) -> dict[str, float]:
    """The exponent histogram of all, one at a time: together they may not fit a second time."""
    total = sum(tensor.numel() for tensor in tensors)
    shares: dict[str, float] = {}
    for tensor in tensors:
        for exponent, share in exponent_histogram(tensor).items():
            before = shares.get(str(exponent), 0.0)
            shares[str(exponent)] = before + share * tensor.numel() / total
    return shares
