"""Uncertainty of benchmark scores: questions that share a stimulus are no independent draws."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ritornello.common.statistics.intervals import CHUNK, Interval, tails


def standard_error(scores: ArrayLike) -> float:
    """Standard error of the mean of independent scores (n - 1 in the variance)."""
    x = _scores(scores)
    return float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else 0.0


def clustered_standard_error(scores: ArrayLike, clusters: Sequence[object]) -> float:
    """Standard error of the mean when scores within a cluster may hang together.

    sqrt(G / (G - 1) · Σ_g (Σ_{i in g} (x_i - mean))²) / n; 0 for a single cluster.
    """
    x = _scores(scores)
    sums, _ = _by_cluster(x - x.mean(), clusters)
    groups = len(sums)
    if groups < 2:
        return 0.0
    return float(np.sqrt(groups / (groups - 1) * (sums**2).sum()) / len(x))


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's interval of a share; at its best where shares are near 0 or 1 or n is small."""
    from scipy import special

    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"successes must be in [0, n] and n >= 1, got {successes} and {n}")
    z2 = float(special.ndtri(tails(level)[1])) ** 2
    share = successes / n
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    spread = share * (1 - share) / n + z2 / (4 * n**2)
    half = z2**0.5 / (1 + z2 / n) * spread**0.5
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def mcnemar_p(a: ArrayLike, b: ArrayLike) -> float:
    """Exact two-sided McNemar test of two 0/1 score vectors on the same questions."""
    from scipy import stats

    x, y = _scores(a), _scores(b)
    if x.shape != y.shape or not np.isin(np.concatenate([x, y]), (0, 1)).all():
        raise ValueError("a and b must be 0/1 scores of the same questions")
    only_a, only_b = int((x > y).sum()), int((y > x).sum())
    return float(stats.binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(raised, 1)
    return adjusted.tolist()


def cluster_bootstrap(
    scores: ArrayLike,
    clusters: Sequence[object] | None = None,
    *,
    resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of the mean score; whole clusters are drawn.

    For two systems on the same questions give the differences of their scores. Clusters with equal
    sums and sizes are exchangeable, so their counts are drawn at once from a multinomial: the same
    distribution as drawing every one, and for 0/1 scores thousands of times less work.

    Args:
        scores: (questions,).
        clusters: what each question belongs to; None: every question stands alone.
    """
    x = _scores(scores)
    if clusters is None:
        kinds, counts = np.unique(np.stack([x, np.ones_like(x)]), axis=1, return_counts=True)
    else:
        kinds, counts = np.unique(np.stack(_by_cluster(x, clusters)), axis=1, return_counts=True)
    means = _resampled_means(kinds, counts, resamples, np.random.Generator(np.random.PCG64(seed)))
    low, high = np.quantile(means, tails(level))
    return Interval(float(x.mean()), float(low), float(high))


def macro_mean(
    scores: Sequence[ArrayLike], clusters: Sequence[Sequence[object]] | None = None
) -> tuple[float, float]:
    """Unweighted mean over tasks of their mean scores, and its standard error.

    The tasks are fixed and independent: variance = Σ task variances / T².
    """
    if not scores:
        raise ValueError("scores must hold at least one task")
    errors = [
        standard_error(task) if clusters is None else clustered_standard_error(task, clusters[t])
        for t, task in enumerate(scores)
    ]
    mean = float(np.mean([_scores(task).mean() for task in scores]))
    return mean, float(np.sqrt(np.square(errors).sum()) / len(scores))


def _resampled_means(
    kinds: NDArray[np.float64],
    counts: NDArray[np.int64],
    resamples: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Means of `resamples` draws of clusters; kinds (2, k) holds the sum and size of each kind."""
    total, (sums, sizes) = int(counts.sum()), kinds
    few = len(counts) * 4 <= total
    means = []
    step = max(1, CHUNK // (len(counts) if few else total))
    places = np.repeat(np.arange(len(counts)), counts)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        if few:
            drawn = rng.multinomial(total, counts / total, size=rows)
            means.append((drawn @ sums) / (drawn @ sizes))
        else:
            chosen = places[rng.integers(total, size=(rows, total), dtype=np.int32)]
            means.append(sums[chosen].sum(1) / sizes[chosen].sum(1))
    return np.concatenate(means)


def _by_cluster(
    x: NDArray[np.float64], clusters: Sequence[object]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum and number of the values of each cluster."""
    if len(clusters) != len(x):
        raise ValueError(f"clusters must name one per score, got {len(clusters)} for {len(x)}")
    # elements of a tensor are equal only to themselves
    names = getattr(clusters, "tolist", lambda: clusters)()
    numbers: dict[object, int] = {}
    places = np.array([numbers.setdefault(name, len(numbers)) for name in names])
    sums = np.bincount(places, weights=x).astype(np.float64)
    return sums, np.bincount(places).astype(np.float64)


def _scores(values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x) or not np.isfinite(x).all():
        raise ValueError(f"scores must be a vector of finite numbers, got shape {x.shape}")
    return x
