"""Were two samples drawn from the same model? Permutation and bootstrap tests (sec. 3.3).

Legend: N1, N2 pairs of the samples, n = N1 + N2, R resamples, S independent draws.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ritornello.methods.model_equality_testing.sample import CompletionSample, check_comparable
from ritornello.methods.model_equality_testing.statistics import (
    KERNELS,
    Kind,
    Pool,
    PooledStatistic,
    Statistic,
    as_statistic,
)

NullSampler = Callable[[int, np.random.Generator], CompletionSample]


@dataclass(frozen=True)
class TestResult:
    """Outcome of one test.

    Attributes:
        p_value: share of null statistics at least as large as the observed one.
        statistic: the observed one.
        null_statistics: float64 (R,); NaN where a resample leaves it undefined.
        n: sizes of the samples.
    """

    p_value: float
    statistic: float
    null_statistics: Float[Tensor, " R"]
    n: tuple[int, int]

    def rejects(self, alpha: float) -> bool:
        """Whether the null hypothesis falls at level alpha: p <= alpha."""
        check_level(alpha)
        return self.p_value <= alpha


@dataclass(frozen=True)
class BootstrapNull:
    """Null statistics that can be used again for samples of the same sizes and shape.

    Attributes:
        statistic: what was computed.
        n: sizes of both samples.
        length, num_prompts: of the completions.
        null_statistics: float64, (R,).
    """

    statistic: Statistic
    n: tuple[int, int]
    length: int
    num_prompts: int
    null_statistics: Float[Tensor, " R"]


def two_sample_test(
    a: CompletionSample,
    b: CompletionSample,
    statistic: Statistic | Kind = "mmd_hamming",
    method: Literal["permutation", "bootstrap"] = "permutation",
    n_resamples: int = 1000,
    seed: int = 0,
    stratified: bool = False,
    plus_one: bool = True,
    null_sampler: NullSampler | BootstrapNull | None = None,
) -> TestResult:
    """Tests H0: both samples come from the same distribution over prompt-completion pairs.

    Args:
        a, b: samples over the same prompts, with completions of the same L.
        statistic: a name or a `Statistic`.
        method: "permutation" shuffles pairs between the samples; "bootstrap" draws both samples
            from the null model (sec. 3.3).
        n_resamples: permutations or bootstrap draws, R.
        seed: of the resamples.
        stratified: shuffle within each prompt only, as is exact where the number of completions of
            each prompt was fixed beforehand; the published test shuffles freely, as is exact where
            prompts were drawn at random.
        plus_one: p = (1 + #) / (R + 1), valid at every R; otherwise # / R as published, which can
            be 0.
        null_sampler: for the bootstrap: draws a sample of n pairs, or what `bootstrap_null` kept.

    Raises:
        ValueError: samples that cannot be compared, a statistic that is undefined for want of
            repeated prompts, or an argument out of range.
    """
    statistic = as_statistic(statistic)
    check_resamples(n_resamples)
    if method not in ("permutation", "bootstrap"):
        raise ValueError(f"method must be 'permutation' or 'bootstrap', got {method!r}")
    pool = Pool.of(a, b)
    pooled = statistic.pooled(pool.codes, pool.pad)
    observed = _observed(pooled, pool.first)
    if method == "permutation":
        rng = np.random.default_rng(seed)
        labels = shuffled_labels(pool.first, n_resamples, rng, pool.sizes if stratified else None)
        null = pooled(labels[None])[0]
    else:
        null = _bootstrap_statistics(a, b, statistic, null_sampler, n_resamples, seed)
    p = p_values(observed, null, slack=statistic.slack(len(a), len(b)), plus_one=plus_one)
    return TestResult(float(p), float(observed), null, (len(a), len(b)))


def mmd_statistic(
    a: CompletionSample,
    b: CompletionSample,
    kernel: Literal["hamming", "spectrum", "all_substrings", "one_hot"] = "hamming",
    k: int = 5,
    cumulative: bool = True,
    normalisation: Literal["pairs", "paper"] = "pairs",
    ignore_padding: bool = False,
) -> float:
    """The unbiased MMD^2 estimate alone; it may be negative. See `Statistic` for the options."""
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {list(KERNELS)}, got {kernel!r}")
    statistic = Statistic(KERNELS[kernel], k, cumulative, normalisation, ignore_padding)
    return statistic_of(a, b, statistic)


def statistic_of(a: CompletionSample, b: CompletionSample, statistic: Statistic | Kind) -> float:
    """A statistic of two samples, without a test.

    Raises:
        ValueError: the samples are not comparable, or no prompt repeats inside one of them.
    """
    pool = Pool.of(a, b)
    return float(_observed(as_statistic(statistic).pooled(pool.codes, pool.pad), pool.first))


def bootstrap_null(
    null_sampler: NullSampler,
    n: tuple[int, int],
    statistic: Statistic | Kind = "mmd_hamming",
    n_resamples: int = 1000,
    seed: int = 0,
) -> BootstrapNull:
    """Null statistics of pairs of samples that are both drawn from the null model.

    Args:
        null_sampler: (n, generator) gives n prompt-completion pairs of the null model.
        n: sizes of both samples.
        statistic: a name or a `Statistic`.
        n_resamples: number of pairs of samples.
        seed: of the draws.

    Raises:
        ValueError: n_resamples < 1, or as `Pool.of`.
    """
    check_resamples(n_resamples)
    rng = np.random.default_rng(seed)
    statistic = as_statistic(statistic)
    values = torch.empty(n_resamples, dtype=torch.float64)
    for index in range(n_resamples):
        pair = null_sampler(n[0], rng), null_sampler(n[1], rng)
        pool = Pool.of(*pair)
        values[index] = statistic.pooled(pool.codes, pool.pad)(pool.first[None, None])[0, 0]
    return BootstrapNull(statistic, n, pair[0].length, pair[0].num_prompts, values)


def composite_test(
    sample: CompletionSample,
    nulls: Mapping[str, CompletionSample] | Sequence[CompletionSample],
    alpha: float = 0.05,
    **options: Any,
) -> tuple[bool, dict[str, TestResult]]:
    """Tests against several acceptable models, such as fp32 or fp16 weights (sec. 5).

    Args:
        sample: what the endpoint answered.
        nulls: a reference sample for each acceptable model, by name or in order ("0", "1", ...).
        alpha: level; the composite null falls only if every single one does.
        options: of `two_sample_test`.

    Returns:
        Whether all are rejected, and the single results by name.
    """
    check_level(alpha)
    if not nulls:
        raise ValueError("nulls must hold at least one reference sample")
    if not isinstance(nulls, Mapping):
        nulls = {str(place): null for place, null in enumerate(nulls)}
    results = {name: two_sample_test(sample, null, **options) for name, null in nulls.items()}
    return all(result.rejects(alpha) for result in results.values()), results


def bonferroni(p_values: Sequence[float], alpha: float = 0.05) -> list[bool]:
    """Which of several tests (prompt sets, endpoints) reject at family-wise level alpha."""
    check_level(alpha)
    return [p <= alpha / len(p_values) for p in p_values]


def pairwise_mmd(
    samples: Sequence[CompletionSample], statistic: Statistic | Kind = "mmd_hamming"
) -> Float[Tensor, "samples samples"]:
    """MMD^2 estimates between all pairs of samples, each kernel computed once; diagonal 0.

    Raises:
        ValueError: fewer than two samples, no MMD, or samples that are not comparable or empty.
    """
    statistic = as_statistic(statistic)
    if len(samples) < 2 or not statistic.is_mmd:
        raise ValueError(
            f"pairwise_mmd needs two samples and an mmd statistic, got {len(samples)} and "
            f"{statistic.kind!r}"
        )
    for other in samples[1:]:
        check_comparable(samples[0], other)
    prompts = torch.cat([sample.prompts for sample in samples])
    rows = torch.cat([sample.completions for sample in samples])
    statistic.check_codes([rows], samples[0].pad)
    owner = torch.cat([torch.full((len(s),), i) for i, s in enumerate(samples)]).to(rows.device)
    member = torch.nn.functional.one_hot(owner, len(samples)).double()
    sums = member.new_zeros(len(samples), len(samples))
    pairs = torch.zeros_like(sums)
    for prompt in prompts.unique():
        here = prompts == prompt
        z = member[here]
        sums += z.mT @ statistic.kernel(rows[here][None], samples[0].pad)[0] @ z
        counts = z.sum(0)
        pairs += counts[:, None] * counts - counts.diag()
    if statistic.normalisation == "paper":
        counts = member.sum(0)
        pairs = counts[:, None] * counts - counts.diag()
    if bool((pairs == 0).any()):
        raise ValueError(_UNDEFINED)
    means = (sums + sums.mT) / (2 * pairs)
    within = means.diagonal()
    # in this order the matrix is symmetric to the last bit
    return (within[:, None] + within[None] - 2 * means).fill_diagonal_(0.0)


def shuffled_labels(
    first: Bool[Tensor, " n"],
    resamples: int,
    rng: np.random.Generator,
    strata: Sequence[int] | None = None,
) -> Bool[Tensor, "resamples n"]:
    """Random reassignments of pooled rows to the samples, whose sizes stay.

    Args:
        first: true for rows of the first sample.
        resamples: how many.
        rng: where they come from.
        strata: sizes of consecutive groups within which labels are shuffled; None for one group.
    """
    base = np.broadcast_to(first.cpu().numpy(), (resamples, len(first)))
    if strata is None:
        return torch.from_numpy(rng.permuted(base, axis=1)).to(first.device)
    parts = np.split(base, np.cumsum(strata)[:-1], axis=1)
    mixed = np.concatenate([rng.permuted(part, axis=1) for part in parts], axis=1)
    return torch.from_numpy(mixed).to(first.device)


def p_values(
    observed: Float[Tensor, "*draws"],
    null: Float[Tensor, "*draws R"],
    *,
    slack: float = 0.0,
    plus_one: bool = True,
) -> Float[Tensor, "*draws"]:
    """Share of null statistics >= the observed one, counting ties and undefined ones (NaN)."""
    above = ~(null < observed[..., None] - slack)
    hits = above.sum(-1).double()
    return (hits + 1) / (null.shape[-1] + 1) if plus_one else hits / null.shape[-1]


def check_resamples(n_resamples: int) -> None:
    """Raises ValueError unless there is at least one."""
    if n_resamples < 1:
        raise ValueError(f"n_resamples must be >= 1, got {n_resamples}")


def check_level(alpha: float) -> None:
    """Raises ValueError unless 0 < alpha < 1."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be in (0, 1), got {alpha}")


_UNDEFINED = (
    "the statistic is undefined: no prompt repeats inside a sample, or the samples share none; "
    "draw several completions of each prompt"
)


def _observed(pooled: PooledStatistic, first: Tensor) -> Tensor:
    observed = pooled(first[None, None])[0, 0]
    if not bool(observed.isfinite()):
        raise ValueError(_UNDEFINED)
    return observed


def _bootstrap_statistics(
    a: CompletionSample,
    b: CompletionSample,
    statistic: Statistic,
    null: NullSampler | BootstrapNull | None,
    n_resamples: int,
    seed: int,
) -> Tensor:
    if null is None:
        raise ValueError("null_sampler is needed for method='bootstrap': what draws from the null")
    if not isinstance(null, BootstrapNull):
        null = bootstrap_null(null, (len(a), len(b)), statistic, n_resamples, seed)
    made_for = (null.statistic, null.n, null.length, null.num_prompts)
    wanted = (statistic, (len(a), len(b)), a.length, a.num_prompts)
    if made_for != wanted:
        raise ValueError(
            "null_sampler was made for other samples: (statistic, sizes, L, prompts) is "
            f"{made_for}, but {wanted} is tested"
        )
    return null.null_statistics.to(a.completions.device)
