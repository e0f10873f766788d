"""How well a metric ranks explainers whose order is known: macro, micro and rank correlations."""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

PAIRS = ("morf_vs_gt", "lerf_vs_gt", "morf_vs_lerf")
# With quality as the truth, accuracy should fall faster under MoRF the better the explainer.
BEST_SIGN: dict[str, Literal[-1, 1]] = {"morf_vs_gt": -1, "lerf_vs_gt": 1, "morf_vs_lerf": -1}


class RankAgreement(NamedTuple):
    """Spearman correlations of curves with the truth; arrays over metrics where several are given.

    Attributes:
        macro: correlation of the curves' means over sizes.
        micro: mean over sizes of the correlation at a size; sizes where it is undefined left out.
        micro_rank: mean over sizes of a metric's place among the metrics, 1 for the best.
    """

    macro: float | Float[NDArray, " metrics"]
    micro: float | Float[NDArray, " metrics"]
    micro_rank: float | Float[NDArray, " metrics"]


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
    curves: Float[ArrayLike, "*metrics explainers sizes"],
    quality: Float[ArrayLike, " explainers"] | Float[ArrayLike, "*metrics explainers sizes"],
    *,
    best: Literal[-1, 1] = -1,
    ties: Literal["min", "average"] = "min",
) -> RankAgreement:
    """Correlates removal curves with the known quality of the explainers, or with others (sec. 5).

    Args:
        curves: accuracy by explainer and size, of one metric or of several; NaN is passed on.
        quality: ground truth, higher is better (1 − p of a degraded explainer); or curves of the
            same shape, as LeRF's for MoRF's.
        best: the sign of a perfect correlation, which places metrics: −1 for MoRF, 1 for LeRF.
        ties: equal metrics share the `min` of their places, as the published table does, or the
            `average`. An undefined correlation comes last.

    Returns:
        NaN where all explainers have the same value: no order is not a correlation of 0.

    Raises:
        ValueError: shapes that do not fit, fewer than two explainers, an unknown option.
    """
    if ties not in ("min", "average") or best not in (-1, 1):
        raise ValueError(f"ties must be min or average and best -1 or 1, got {ties!r}, {best!r}")
    a, truth = np.asarray(curves, np.float64), np.asarray(quality, np.float64)
    known = truth[:, None] if truth.ndim == 1 else truth
    fits = a.ndim in (2, 3) and known.shape in (a.shape, (a.shape[-2], 1))
    if not fits or a.shape[-2] < 2 or not a.shape[-1]:
        raise ValueError(
            "curves must be (explainers, sizes) or (metrics, explainers, sizes) with at least two "
            "explainers, and quality (explainers,) or of the same shape, "
            f"got {a.shape} and {truth.shape}"
        )
    x, y = (np.moveaxis(side, -2, 0) for side in (a, np.broadcast_to(known, a.shape)))
    by_size = spearman(x, y)
    macro, micro = spearman(x.mean(-1), y.mean(-1)), mean_of_defined(by_size)
    at = places(best * np.atleast_2d(by_size), ties).mean(1)
    if a.ndim == 2:
        return RankAgreement(float(macro), float(micro), float(at[0]))
    return RankAgreement(macro, micro, at)


def mean_of_defined(values: Float[NDArray, "*metrics sizes"]) -> Float[NDArray, "*metrics"]:
    """Mean along the last axis of what is not NaN; NaN where nothing is."""
    defined = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(defined, values, 0).sum(-1) / defined.sum(-1)


def places(
    good: Float[NDArray, "metrics sizes"], ties: Literal["min", "average"] = "min"
) -> Float[NDArray, "metrics sizes"]:
    """Place of every metric at every size; 1 for the highest, NaN comes last."""
    badness = np.where(np.isnan(good), np.inf, -np.round(good, 12))
    if ties == "average":
        return mid_ranks(badness)
    return (badness[None] < badness[:, None]).sum(1) + 1.0
