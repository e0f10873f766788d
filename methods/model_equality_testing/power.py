"""How often a test notices: Monte-Carlo power, all simulations in one batch (sec. 4).

Legend: S simulations, m prompts, n completions a prompt and sample, b = 2n, R permutations.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ritornello.common.statistics.evaluation import wilson_interval
from ritornello.methods.model_equality_testing.sample import CompletionSample
from ritornello.methods.model_equality_testing.statistics import (
    Kind,
    PooledMMD,
    PooledStatistic,
    Statistic,
    as_statistic,
)
from ritornello.methods.model_equality_testing.two_sample import (
    check_level,
    p_values,
    shuffled_labels,
)

PromptSampler = Callable[[int, np.random.Generator], CompletionSample]
# Labels held at once: simulations are taken in chunks.
_CHUNK = 20_000_000
_REPLACEMENT_FACTOR = 100


@dataclass(frozen=True)
class PowerEstimate:
    """Share of simulations in which the null hypothesis fell.

    Attributes:
        power: the share.
        low, high: its 95 % Wilson interval (simulations that share a finite pool are dependent,
            which it does not know).
        p_values: float64, (S,).
        alpha: the level.
    """

    power: float
    low: float
    high: float
    p_values: Float[Tensor, " S"]
    alpha: float

    @property
    def rejections(self) -> list[float]:
        """1 for every simulation that rejects, else 0."""
        return (self.p_values <= self.alpha).double().tolist()


def estimate_power(
    sampler_p: CompletionSample | PromptSampler,
    sampler_q: CompletionSample | PromptSampler,
    n: int,
    alpha: float = 0.05,
    n_simulations: int = 100,
    *,
    statistic: Statistic | Kind = "mmd_hamming",
    n_resamples: int = 200,
    stratified: bool = False,
    plus_one: bool = True,
    replace: bool = False,
    seed: int = 0,
) -> PowerEstimate:
    """Power of the permutation test between n completions a prompt of either model.

    The draws and the permutations come from `seed` alone: calls that differ in the statistic test
    the same simulated samples with the same permutations, so their p-values are paired, not
    independent.

    Args:
        sampler_p, sampler_q: a pool of completions, or a function that draws n of every prompt.
            Give one pool twice for the false positive rate: both samples then come from disjoint
            parts of it.
        n: completions of each prompt in each sample; N = m n.
        alpha: level.
        n_simulations: S.
        statistic: a name or a `Statistic`.
        n_resamples: permutations of each simulation.
        stratified: permute within prompts only. The draws have n of every prompt, so that this is
            the exact test; the published one shuffles freely.
        plus_one: see `two_sample_test`.
        replace: draw from pools with replacement, as the published simulator does.
        seed: of everything.

    Raises:
        ValueError: an argument out of range, or pools that are too small: n completions a prompt
            (2n when one pool serves both) without replacement, 100 n with it, since the finite
            pools themselves differ and small ones make the test reject true hypotheses.
    """
    check_level(alpha)
    if n < 2 or n_simulations < 1 or n_resamples < 1:
        raise ValueError(
            "n (completions a prompt) must be >= 2, n_simulations and n_resamples >= 1, got "
            f"{n}, {n_simulations}, {n_resamples}"
        )
    statistic = as_statistic(statistic)
    rng = np.random.default_rng(seed)
    draws = _Draws.of(sampler_p, sampler_q, n, n_simulations, replace, rng)
    rows = 2 * n
    first = torch.arange(rows * len(draws.places)) % rows < n
    found = []
    step = max(1, _CHUNK // (n_resamples * len(first)))
    for start in range(0, n_simulations, step):
        part = slice(start, min(start + step, n_simulations))
        pooled = draws.pooled(statistic, part)
        count = part.stop - part.start
        strata = [rows] * len(draws.places) if stratified else None
        labels = shuffled_labels(first, count * n_resamples, rng, strata)
        labels = labels.view(count, n_resamples, -1)
        observed = first.expand(count, 1, -1)
        values = pooled(torch.cat([observed, labels], dim=1).to(draws.device))
        slack = statistic.slack(len(first) // 2, len(first) // 2)
        found.append(p_values(values[:, 0], values[:, 1:], slack=slack, plus_one=plus_one).cpu())
    p = torch.cat(found)
    return PowerEstimate(*wilson_interval(int((p <= alpha).sum()), len(p)), p, alpha)


@dataclass(frozen=True)
class _Draws:
    """Which completions each simulation draws.

    Attributes:
        rows: per prompt the completions of both pools together, (T, L).
        places: per prompt the rows of each simulation, its first sample before its second, (S, b).
        repeat: whether a simulation may draw a row more than once.
    """

    rows: list[Int[Tensor, "T L"]]
    places: list[Int[Tensor, "S b"]]
    repeat: bool
    pad: int
    device: torch.device

    @classmethod
    def of(
        cls,
        p: CompletionSample | PromptSampler,
        q: CompletionSample | PromptSampler,
        n: int,
        simulations: int,
        replace: bool,
        rng: np.random.Generator,
    ) -> "_Draws":
        shared = p is q and isinstance(p, CompletionSample)
        pools = [s if isinstance(s, CompletionSample) else s(n * simulations, rng) for s in (p, q)]
        for name in ("length", "num_prompts", "pad"):
            ours, theirs = (getattr(pool, name) for pool in pools)
            if ours != theirs:
                raise ValueError(f"both samplers must have the same {name}, got {ours}, {theirs}")
        device = pools[0].completions.device
        rows, places = [], []
        for prompt in torch.unique(pools[0].prompts).tolist():
            parts = [pool.completions[pool.prompts.to(device) == prompt] for pool in pools]
            sizes = [len(part) for part in parts]
            if shared:
                _check_pool(sizes[0], 2 * n, prompt, replace)
                drawn = _choose(sizes[0], 2 * n, simulations, replace, rng)
                rows.append(parts[0])
            else:
                for size in sizes:
                    _check_pool(size, n, prompt, replace)
                chosen = [_choose(size, n, simulations, replace, rng) for size in sizes]
                drawn = np.concatenate([chosen[0], chosen[1] + sizes[0]], axis=1)
                rows.append(torch.cat(parts))
            places.append(torch.from_numpy(drawn).to(device))
        return cls(rows, places, replace, pools[0].pad, device)

    def pooled(self, statistic: Statistic, part: slice) -> PooledStatistic:
        """The statistic of the simulations in `part`.

        Where the draws overlap so much that one kernel of the whole pool costs less than one for
        each simulation, it is computed once and cut; not where a row can be drawn twice, as its
        similarity to itself, then between two draws, is no longer in it.
        """
        simulations, drawn = self.places[0].shape
        cheaper = len(self.rows[0]) ** 2 <= simulations * drawn**2
        if statistic.is_mmd and cheaper and not self.repeat:
            statistic.check_codes(self.rows, self.pad)
            blocks = []
            for rows, places in zip(self.rows, self.places, strict=True):
                whole = statistic.kernel(rows[None], self.pad)[0]
                at = places[part]
                block = whole[at[:, :, None], at[:, None, :]]
                block.diagonal(dim1=-2, dim2=-1).zero_()
                blocks.append(block)
            return PooledMMD(blocks, statistic.normalisation)
        codes = [rows[places[part]] for rows, places in zip(self.rows, self.places, strict=True)]
        return statistic.pooled(codes, self.pad)


def _choose(
    size: int, n: int, simulations: int, replace: bool, rng: np.random.Generator
) -> np.ndarray:
    """(simulations, n) row indices; disjoint between simulations where the pool is large enough."""
    if replace:
        return rng.integers(size, size=(simulations, n))
    if size >= n * simulations:
        return rng.permutation(size)[: n * simulations].reshape(simulations, n)
    return rng.permuted(np.tile(np.arange(size), (simulations, 1)), axis=1)[:, :n]


def _check_pool(size: int, n: int, prompt: int, replace: bool) -> None:
    needed = _REPLACEMENT_FACTOR * n if replace else n
    if size < needed:
        how = "with" if replace else "without"
        raise ValueError(
            f"the pool has {size} completions of prompt {prompt}, but {n} are drawn {how} "
            f"replacement: it needs at least {needed}, as small pools differ by themselves and "
            "inflate false positives"
        )
