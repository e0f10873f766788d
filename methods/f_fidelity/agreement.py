"""How well a metric ranks explainers whose order is known: macro, micro and rank correlations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

PAIRS = ("morf_vs_gt", "lerf_vs_gt", "morf_vs_lerf")
# With quality as the truth, accuracy should fall faster under MoRF the better the explainer.
BEST_SIGN = {"morf_vs_gt": -1, "lerf_vs_gt": 1, "morf_vs_lerf": -1}


@dataclass(frozen=True)
class RankAgreement:
    """Spearman correlations by pair (`morf_vs_gt`, `lerf_vs_gt`, `morf_vs_lerf`).

    Attributes:
        macro: correlation of the curves' means over sizes.
        micro: mean over sizes of the correlation at a size; sizes where it is undefined left out.
        by_size: the correlation at every size; NaN where all explainers got the same value.
        undefined: how many sizes had none.
        kendall: Kendall's τ-b of the curves' means.
    """

    macro: Mapping[str, float]
    micro: Mapping[str, float]
    by_size: Mapping[str, NDArray[np.float64]]
    undefined: Mapping[str, int]
    kendall: Mapping[str, float]


def mid_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Ranks along the first axis, ties at their mean."""
    x = np.asarray(values, dtype=np.float64)
    below = (x[None] < x[:, None]).sum(1)
    equal = (x[None] == x[:, None]).sum(1)
    return below + (equal + 1) / 2


def spearman(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """Spearman's ρ along the first axis, vectorised over the others; NaN where a side is constant.

    NaN too where a value is NaN.
    """
    u, v = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    x, y = (mid_ranks(side) - (len(side) + 1) / 2 for side in (u, v))
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = (x * y).sum(0) / np.sqrt((x**2).sum(0) * (y**2).sum(0))
    return np.where(np.isnan(u).any(0) | np.isnan(v).any(0), np.nan, rho)


def rank_agreement(
    morf: Float[NDArray, "explainers sizes"],
    lerf: Float[NDArray, "explainers sizes"],
    quality: Float[NDArray, " explainers"],
) -> RankAgreement:
    """Correlates removal curves with the known quality of the explainers (sec. 5).

    Args:
        morf: accuracy while the most relevant elements are removed (NaN is passed on).
        lerf: the same, least relevant first.
        quality: ground truth, higher is better (1 − p of a degraded explainer).

    Raises:
        ValueError: shapes that do not fit, fewer than two explainers.
    """
    from scipy import stats

    a, b = np.asarray(morf, np.float64), np.asarray(lerf, np.float64)
    truth = np.asarray(quality, np.float64)
    if a.ndim != 2 or a.shape != b.shape or truth.shape != a.shape[:1] or len(truth) < 2:
        raise ValueError(
            "morf and lerf must be (explainers, sizes) and quality (explainers,) with at least "
            f"two explainers, got {a.shape}, {b.shape} and {truth.shape}"
        )
    truth_by_size = np.broadcast_to(truth[:, None], a.shape)
    sides = {
        "morf_vs_gt": (a, truth_by_size),
        "lerf_vs_gt": (b, truth_by_size),
        "morf_vs_lerf": (a, b),
    }
    by_size = {name: spearman(x, y) for name, (x, y) in sides.items()}
    means = {name: (x.mean(1), y.mean(1)) for name, (x, y) in sides.items()}
    return RankAgreement(
        macro={name: float(spearman(x, y)) for name, (x, y) in means.items()},
        micro={name: _mean_of_defined(values) for name, values in by_size.items()},
        by_size=by_size,
        undefined={name: int(np.isnan(values).sum()) for name, values in by_size.items()},
        kendall={
            name: float(np.asarray(stats.kendalltau(x, y))[0]) for name, (x, y) in means.items()
        },
    )


def micro_rank(
    agreements: Mapping[str, RankAgreement], *, ties: Literal["min", "average"] = "min"
) -> dict[str, dict[str, float]]:
    """Mean over sizes of every metric's place among the metrics; 1 is best (sec. 5).

    Args:
        agreements: by metric, over the same sizes.
        ties: equal metrics share the `min` of their places, as the published table does, or the
            `average`. An undefined correlation comes last.

    Returns:
        metric → pair → mean place.
    """
    if ties not in ("min", "average"):
        raise ValueError(f"ties must be min or average, got {ties!r}")
    places: dict[str, dict[str, float]] = {metric: {} for metric in agreements}
    for pair in PAIRS:
        good = np.stack([a.by_size[pair] for a in agreements.values()]) * BEST_SIGN[pair]
        badness = np.where(np.isnan(good), np.inf, -np.round(good, 12))
        if ties == "average":
            ranks = mid_ranks(badness)
        else:
            ranks = (badness[None] < badness[:, None]).sum(1) + 1
        for metric, row in zip(agreements, ranks, strict=True):
            places[metric][pair] = float(row.mean())
    return places


def _mean_of_defined(values: NDArray[np.float64]) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")
