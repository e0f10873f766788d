"""Hyper-parameter search: line searches, joint random search, and how well optima transfer.

Independent search (sec. 5.2, app. A.4) is what unit scaling makes cheap: the learning rate alone,
then each multiplier alone at that rate, then the best values together.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Evaluate = Callable[[dict[str, float]], float]


@dataclass(frozen=True)
class Trial:
    """One training run: its hyper-parameters, its loss, and the phase of the search."""

    values: dict[str, float]
    loss: float
    phase: str


@dataclass(frozen=True)
class SearchResult:
    """All trials in the order in which they ran."""

    trials: list[Trial]

    @property
    def best(self) -> Trial:
        """The trial of lowest loss; diverged ones (nan) never win."""
        return min(self.trials, key=lambda trial: _finite(trial.loss))

    def best_so_far(self) -> list[float]:
        """Lowest loss after each run: the curve of search cost."""
        curve, lowest = [], math.inf
        for trial in self.trials:
            lowest = min(lowest, _finite(trial.loss))
            curve.append(lowest)
        return curve


def independent_search(
    evaluate: Evaluate,
    rates: Sequence[float],
    multipliers: Mapping[str, Sequence[float]],
    *,
    rate: str = "lr",
    default: float = 1.0,
) -> SearchResult:
    """Line search of the rate, of each multiplier at the best rate, then the best values together.

    Args:
        evaluate: trains with the given values and gives the loss.
        rates: candidates of the learning rate, run with all multipliers at `default`.
        multipliers: candidates of each multiplier; `default` itself is not run again.
        rate: key of the learning rate in the values.
        default: value of a multiplier that is not being searched.
    """
    _check_grid(rate, rates)
    base = dict.fromkeys(multipliers, default)
    trials = [_run(evaluate, base | {rate: value}, "rate") for value in rates]
    best_rate = min(trials, key=lambda trial: _finite(trial.loss))
    combined = dict(best_rate.values)
    for name, candidates in multipliers.items():
        _check_grid(name, candidates)
        line = [best_rate]
        for value in candidates:
            if value != default:
                line.append(_run(evaluate, best_rate.values | {name: value}, name))
        trials += line[1:]
        combined[name] = min(line, key=lambda trial: _finite(trial.loss)).values[name]
    if combined != best_rate.values:
        trials.append(_run(evaluate, combined, "combined"))
    return SearchResult(trials)


def random_search(
    evaluate: Evaluate,
    grids: Mapping[str, Sequence[float]],
    runs: int,
    *,
    generator: torch.Generator,
) -> SearchResult:
    """Draws every hyper-parameter from its grid independently, `runs` times."""
    if runs < 1:
        raise ValueError(f"runs must be at least 1, got {runs}")
    trials = []
    for _ in range(runs):
        values = {}
        for name, candidates in grids.items():
            _check_grid(name, candidates)
            values[name] = candidates[int(torch.randint(len(candidates), (), generator=generator))]
        trials.append(_run(evaluate, values, "random"))
    return SearchResult(trials)


def transfer_error(losses: Float[Tensor, "fixed transfer"]) -> float:
    """Mean loss increase from choosing one hyper-parameter at a wrong value of another (alg. 1).

    For each row but the best, the column that is best in that row is used in the best row.

    Args:
        losses: final losses; rows are values of the fixed hyper-parameter, columns of the one whose
            optimum is transferred.

    Raises:
        ValueError: if there are fewer than two rows.
    """
    if losses.dim() != 2 or losses.shape[0] < 2:
        raise ValueError(f"losses must be (fixed >= 2, transfer), got {tuple(losses.shape)}")
    finite = losses.nan_to_num(nan=math.inf)
    best = int(finite.min(dim=1).values.argmin())
    chosen = finite.argmin(dim=1)
    increases = finite[best, chosen] - finite[best].min()
    return float(increases.sum() / (losses.shape[0] - 1))


def parabola_optimum(positions: Sequence[float], losses: Sequence[float]) -> float:
    """Position of the minimum of the parabola through the lowest loss and its neighbours.

    The position of the lowest loss itself when it lies at an end of the grid.

    Args:
        positions: ascending, in log2 of the learning rate.
        losses: as many; nan counts as worst.
    """
    if len(positions) != len(losses) or len(positions) < 3:
        raise ValueError(
            f"positions and losses must be equally many, at least 3, "
            f"got {len(positions)} and {len(losses)}"
        )
    values = [_finite(loss) for loss in losses]
    i = min(range(len(values)), key=values.__getitem__)
    if i in (0, len(values) - 1) or not all(map(math.isfinite, values[i - 1 : i + 2])):
        return float(positions[i])
    (x0, x1, x2), (y0, y1, y2) = positions[i - 1 : i + 2], values[i - 1 : i + 2]
    left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    if left == right:
        return float(x1)
    curvature = (right - left) / (x2 - x0)
    return (x0 + x1) / 2 - left / (2 * curvature)


def interpolate_loss(positions: Sequence[float], losses: Sequence[float], position: float) -> float:
    """Loss at `position`, linear between the grid's points and constant beyond its ends."""
    if position <= positions[0]:
        return losses[0]
    for (x0, y0), (x1, y1) in zip(
        zip(positions, losses, strict=True), list(zip(positions, losses, strict=True))[1:]
    ):
        if position <= x1:
            return y0 + (y1 - y0) * (position - x0) / (x1 - x0)
    return losses[-1]


def _run(evaluate: Evaluate, values: dict[str, float], phase: str) -> Trial:
    return Trial(dict(values), float(evaluate(dict(values))), phase)


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _check_grid(name: str, candidates: Sequence[float]) -> None:
    if not candidates:
        raise ValueError(f"{name} must have at least one candidate value, got {list(candidates)}")
