"""Searches of hyper-parameters: what they cost, and how much the optima depend on each other."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch

from ritornello.common.errors import UserError
from ritornello.common.runs import Cell, CellContext, Measurement
from ritornello.experiments.umup.trained import Trained
from ritornello.experiments.umup.training import Arm
from ritornello.methods.umup.sweep import (
    SearchResult,
    independent_search,
    random_search,
    transfer_error,
)


@dataclass
class Search(Trained):
    """Best loss against the number of runs, for line searches and for joint search (fig. 2).

    Args:
        recipe: training set-up.
        text: gives the text.
        multipliers: candidates of each multiplier, as fields of the parametrisation, by arm's
            parametrisation name.
        runs: of the joint random search.
    """

    multipliers: Mapping[str, Mapping[str, Sequence[float]]] | None = None
    runs: int = 1

    def measure(self, arm: Arm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Lowest loss after every run of both searches; what the multipliers gain."""
        kind = type(arm.parametrization).__name__
        grids = dict((self.multipliers or {}).get(kind, {}))
        _check(f"multipliers.{kind}", grids, arm)

        def evaluate(values: dict[str, float]) -> float:
            chosen = {name: value for name, value in values.items() if name != "lr"}
            tuned = _with(arm, chosen)
            rate = math.log2(values["lr"])
            return self.final_loss(tuned, self.recipe, rate, cell.seed, context.scratch)

        rates = [2.0**rate for rate in arm.log2_rates]
        generator = torch.Generator().manual_seed(cell.seed)
        found: dict[str, SearchResult] = {
            "independent": independent_search(evaluate, rates, grids),
            "random": random_search(
                evaluate, {"lr": rates} | grids, self.runs, generator=generator
            ),
        }
        for strategy, result in found.items():
            for run, loss in enumerate(result.best_so_far(), start=1):
                place = {"strategy": strategy, "run": run}
                if math.isfinite(loss):
                    yield Measurement("best_so_far", loss, self.recipe.unit, coordinates=place)
        independent = found["independent"]
        lines = [t.loss for t in independent.trials if t.phase == "rate" and math.isfinite(t.loss)]
        yield Measurement(
            "gain_over_rate_only", min(lines) - independent.best.loss, self.recipe.unit
        )


@dataclass
class Interdependence(Trained):
    """Loss on the grid of two hyper-parameters at a time, and the transfer error (alg. 1, fig. 3).

    Args:
        recipe: training set-up.
        text: gives the text.
        grids: candidates of each hyper-parameter by the name of the arm's parametrisation: its
            fields, or `log2_rate`.
    """

    grids: Mapping[str, Mapping[str, Sequence[float]]] | None = None

    def measure(self, arm: Arm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """The transfer error of every ordered pair, and their mean."""
        kind = type(arm.parametrization).__name__
        grids = dict((self.grids or {}).get(kind, {}))
        _check(f"grids.{kind}", set(grids) - {"log2_rate"}, arm)
        errors = []
        for fixed, moved in itertools.permutations(grids, 2):
            losses = [
                [self._loss(arm, {fixed: a, moved: b}, cell, context) for b in grids[moved]]
                for a in grids[fixed]
            ]
            error = transfer_error(torch.tensor(losses))
            errors.append(error)
            if math.isfinite(error):
                place = {"fixed": fixed, "moved": moved}
                yield Measurement("transfer_error", error, self.recipe.unit, coordinates=place)
        mean = sum(errors) / len(errors)
        if math.isfinite(mean):
            yield Measurement("mean_transfer_error", mean, self.recipe.unit)

    def _loss(
        self, arm: Arm, values: Mapping[str, float], cell: Cell, context: CellContext
    ) -> float:
        rate = values.get("log2_rate", arm.log2_rate)
        chosen = {name: value for name, value in values.items() if name != "log2_rate"}
        return self.final_loss(_with(arm, chosen), self.recipe, rate, cell.seed, context.scratch)


def _with(arm: Arm, values: Mapping[str, float]) -> Arm:
    """The arm with other multipliers."""
    return replace(arm, parametrization=replace(arm.parametrization, **values))


def _check(argument: str, names: Iterable[str], arm: Arm) -> None:
    known = {field.name for field in fields(arm.parametrization)}
    if not names or set(names) - known:
        raise UserError(f"{argument} must name fields among {sorted(known)}")
