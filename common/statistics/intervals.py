"""Confidence intervals by Student's t and by the seeded percentile bootstrap."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

CHUNK = 4_000_000  # resampled values held at once


class Interval(NamedTuple):
    """A point estimate and its interval."""

    estimate: float
    low: float
    high: float


def t_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Mean of independent values with Student's t interval.

    Args:
        values: (n,) with n >= 2.
        level: coverage in (0, 1).

    Raises:
        ValueError: fewer than two values, one that is not finite, or `level` outside (0, 1).
    """
    from scipy import stats

    x = _finite(values, minimum=2)
    mean, spread = float(x.mean()), float(x.std(ddof=1))
    half = float(stats.t.ppf(tails(level)[1], len(x) - 1)) * spread / np.sqrt(len(x))
    return Interval(mean, mean - half, mean + half)


def tails(level: float) -> tuple[float, float]:
    """The two quantiles between which the share `level` lies.

    Raises:
        ValueError: `level` outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    return (1 - level) / 2, (1 + level) / 2


def bootstrap_indices(n: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Rows of indices drawn with replacement, (chunk, n) at a time, `resamples` rows in all."""
    rng = np.random.default_rng(seed)
    step = max(1, CHUNK // max(n, 1))
    for start in range(0, resamples, step):
        yield rng.integers(n, size=(min(step, resamples - start), n))


def bootstrap_interval(
    samples: ArrayLike,
    *,
    statistic: Callable[[NDArray], NDArray] = lambda x: x.mean(-1),
    resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of a statistic over units.

    Args:
        samples: (units,) values.
        statistic: (..., units) → (...), vectorised over leading axes.
    """
    x = _finite(samples, minimum=2)
    drawn = np.concatenate([statistic(x[i]) for i in bootstrap_indices(len(x), resamples, seed)])
    low, high = np.quantile(drawn, tails(level))
    return Interval(float(statistic(x)), float(low), float(high))


def paired_bootstrap(
    a: ArrayLike,
    b: ArrayLike,
    *,
    compare: Callable[[NDArray, NDArray], NDArray],
    resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of a comparison in which unit i of `a` is the same unit as i of `b`.

    Args:
        a, b: (units,) values.
        compare: two (..., units) arrays → (...), for example the ratio of means.
    """
    x, y = _finite(a, minimum=2), _finite(b, minimum=2)
    if len(x) != len(y):
        raise ValueError(f"a and b must have the same units, got {len(x)} and {len(y)}")
    drawn = np.concatenate(
        [compare(x[i], y[i]) for i in bootstrap_indices(len(x), resamples, seed)]
    )
    low, high = np.quantile(drawn, tails(level))
    return Interval(float(compare(x, y)), float(low), float(high))


def slope_interval(x: ArrayLike, y: ArrayLike, level: float = 0.95) -> Interval:
    """Least-squares slope of y on x with its t interval; needs three points."""
    from scipy import stats

    u, v = _finite(x, minimum=3), _finite(y, minimum=3)
    fit: Any = stats.linregress(u, v)
    half = float(stats.t.ppf(tails(level)[1], len(u) - 2)) * float(fit.stderr)
    return Interval(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half)


def _finite(values: ArrayLike, *, minimum: int) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) < minimum:
        raise ValueError(f"values must be a vector of at least {minimum}, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("values must be finite")
    return x
