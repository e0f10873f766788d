"""Reads the size of the true explanation off the curve of FFid⁺ (sec. 4, theorem on sizes)."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ritornello.methods.f_fidelity.curves import check_sizes


class ExplanationSize(NamedTuple):
    """A size with its percentile interval over inputs; NaN where there is only their mean."""

    size: float
    ci: tuple[float, float]


def explanation_size(
    curve_plus: Float[Tensor, "batch sizes"] | Float[Tensor, " sizes"],
    sizes: Sequence[float],
    *,
    rule: Literal["argmax", "plateau"] = "argmax",
    smallest: float = 0.0,
    resamples: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> ExplanationSize:
    """Where FFid⁺ is largest, with a bootstrap interval over inputs.

    Up to the true size c every removed element matters; above it the expected number of those that
    matter falls as β·d·c/k. Below s = β/α nothing is capped and the curve grows by construction:
    give that as `smallest`, and read sizes above it only.

    Args:
        curve_plus: 1_f(x) − 1_f(x ⊙ m⁺) of every input (`clean[:, None] - morf` of a
            FidelityResult); or its mean, `plus`, for a size without an interval.
        sizes: s.
        rule: `argmax`, the smallest size at the maximum; `plateau`, the largest size whose value is
            within one standard error of the maximum.
        smallest: sizes below it are not considered.
        resamples, level: of the bootstrap.

    Raises:
        ValueError: a bad shape, no size left.
    """
    check_sizes(sizes)
    by_input = curve_plus[None] if curve_plus.ndim == 1 else curve_plus
    if by_input.ndim != 2 or by_input.shape[1] != len(sizes) or not len(by_input):
        raise ValueError(
            f"curve_plus must be (inputs, {len(sizes)} sizes), got {tuple(curve_plus.shape)}"
        )
    if rule not in ("argmax", "plateau"):
        raise ValueError(f"rule must be argmax or plateau, got {rule!r}")
    grid = torch.tensor(list(sizes), dtype=torch.float64)
    allowed = grid >= smallest - 1e-12
    if not bool(allowed.any()):
        raise ValueError(f"smallest must not exceed the largest size, got {smallest}")
    values = by_input.double().cpu()[:, allowed]
    grid = grid[allowed]
    if len(values) == 1:
        at = _read(values, torch.zeros(values.shape[1]), rule)[0]
        return ExplanationSize(float(grid[at]), (math.nan, math.nan))
    rows = torch.randint(len(values), (resamples, len(values)), generator=generator)
    # Counts of every input in every resample: means by one product.
    weights = torch.zeros(resamples, len(values), dtype=torch.float64)
    weights.scatter_add_(1, rows, torch.ones_like(weights))
    error = values.std(0) / len(values) ** 0.5
    found = _read(torch.cat([values.mean(0)[None], weights @ values / len(values)]), error, rule)
    estimates = grid[found]
    tail = (1 - level) / 2
    low, high = torch.quantile(estimates[1:], torch.tensor([tail, 1 - tail], dtype=torch.float64))
    return ExplanationSize(float(estimates[0]), (float(low), float(high)))


def _read(curves: Tensor, error: Tensor, rule: str) -> Tensor:
    top = curves.amax(1, keepdim=True)
    if rule == "argmax":
        return (curves >= top - 1e-12).int().argmax(1)
    slack = error[curves.argmax(1)][:, None]
    places = torch.arange(curves.shape[1])
    return torch.where(curves >= top - slack, places, -1).amax(1)
