"""The test statistics, for many splits of one pool at once (sec. 3.2).

Everything that does not depend on who drew a completion (kernel, normalisation, row numbers) is
computed once for the pooled rows; each split is then a quadratic form in its 0/1 labels.

Legend: S independent draws, R splits of a draw, n pooled rows, b of them of one prompt, m prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ritornello.methods.model_equality_testing import kernels
from ritornello.methods.model_equality_testing.baselines import CountKind, count_statistics
from ritornello.methods.model_equality_testing.sample import CompletionSample, check_comparable

Kind = Literal[
    "mmd_hamming", "mmd_spectrum", "mmd_all_substrings", "mmd_one_hot", "l1", "l2", "chi_squared"
]
# What the kernels of completions are called, and their statistics.
KERNELS: Mapping[str, Kind] = {
    "hamming": "mmd_hamming",
    "spectrum": "mmd_spectrum",
    "all_substrings": "mmd_all_substrings",
    "one_hot": "mmd_one_hot",
}
# Statistics of splits that are equal on paper differ by rounding, and ties are many.
TIE_SLACK = 1e-12


@dataclass(frozen=True)
class Statistic:
    """A two-sample statistic: larger means more different.

    Args:
        kind: a kernel's MMD, or a distance of counts.
        k: longest n-gram of `mmd_spectrum`.
        cumulative: all n-grams up to k (the published default), or those of length k alone.
        normalisation: `pairs` divides by the number of pairs with equal prompts (the published
            code), `paper` by N(N-1) and N1 N2 (eq. 4), which is about m times smaller.
        ignore_padding: for `mmd_hamming`: shared padding does not count as agreement.

    Raises:
        ValueError: an unknown kind or option.
    """

    kind: Kind = "mmd_hamming"
    k: int = 5
    cumulative: bool = True
    normalisation: Literal["pairs", "paper"] = "pairs"
    ignore_padding: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"statistic must be one of {list(get_args(Kind))}, got {self.kind!r}")
        if self.normalisation not in ("pairs", "paper"):
            raise ValueError(
                f"normalisation must be 'pairs' or 'paper', got {self.normalisation!r}"
            )
        if self.k < 1:
            raise ValueError(f"k must be >= 1, got {self.k}")

    @property
    def is_mmd(self) -> bool:
        """Whether it is a maximum mean discrepancy, computed from a kernel of completions."""
        return self.kind.startswith("mmd_")

    def kernel(self, codes: Int[Tensor, "S b L"], pad: int) -> Float[Tensor, "S b b"]:
        """Normalised kernel of completions of one prompt, its diagonal zero."""
        if self.kind == "mmd_hamming":
            raw = kernels.hamming_kernel(codes, pad=pad, ignore_padding=self.ignore_padding)
        elif self.kind == "mmd_one_hot":
            raw = kernels.one_hot_kernel(codes)
        else:
            k = self.k if self.kind == "mmd_spectrum" else codes.shape[-1]
            cumulative = self.cumulative or self.kind == "mmd_all_substrings"
            if not cumulative and k > codes.shape[-1]:
                raise ValueError(f"k={k} exceeds the L={codes.shape[-1]} positions")
            raw = kernels.spectrum_kernel(codes, k=k, pad=pad, cumulative=cumulative)
        return kernels.normalise_kernel(raw)

    def check_codes(self, codes: Sequence[Int[Tensor, "*rows L"]], pad: int) -> None:
        """Raises ValueError where no completion of any prompt is similar to itself."""
        blind = self.kind == "mmd_hamming" and self.ignore_padding
        if blind and all(bool((part == pad).all()) for part in codes):
            raise ValueError(
                "all completions are empty: with ignore_padding=True nothing is left to compare"
            )

    def pooled(self, codes: Sequence[Int[Tensor, "S b L"]], pad: int) -> "PooledStatistic":
        """Prepares the pooled rows of each prompt; see `PooledStatistic` and `check_codes`."""
        self.check_codes(codes, pad)
        if self.kind in ("l1", "l2", "chi_squared"):
            return PooledCounts([kernels.completion_ids(c) for c in codes], self.kind)
        return PooledMMD([self.kernel(c, pad) for c in codes], self.normalisation)

    def slack(self, n1: int, n2: int) -> float:
        """By how much statistics that are equal on paper may differ by rounding."""
        scale = float(n1) * n2 * (n1 + n2) if self.kind == "chi_squared" else 1.0
        return TIE_SLACK * scale


# What the published package calls the statistics, and what they are here.
PUBLISHED_NAMES: Mapping[str, Kind] = {
    "mmd_kspectrum": "mmd_spectrum",
    "mmd_all_subsequences": "mmd_all_substrings",
    "two_sample_L1": "l1",
    "two_sample_L2": "l2",
    "two_sample_chi_squared": "chi_squared",
}


def as_statistic(statistic: "Statistic | Kind") -> Statistic:
    """A statistic from itself, its name, or its name in the published package."""
    if isinstance(statistic, Statistic):
        return statistic
    return Statistic(PUBLISHED_NAMES.get(statistic, statistic))


class PooledStatistic(Protocol):
    """A statistic of pooled rows, grouped by prompt."""

    def __call__(self, labels: Bool[Tensor, "S R n"]) -> Float[Tensor, "S R"]:
        """The statistic of every split; labels are true for rows of the first sample.

        NaN where the statistic is undefined, for want of pairs with equal prompts.
        """
        ...


class PooledMMD:
    """Unbiased MMD^2 from kernel blocks: mean within either sample minus twice the cross mean.

    Args:
        blocks: one normalised kernel (S, b, b) per prompt, diagonal zero.
        normalisation: see `Statistic`.
    """

    def __init__(self, blocks: Sequence[Float[Tensor, "S b b"]], normalisation: str) -> None:
        self.blocks = blocks
        self._by_pairs = normalisation == "pairs"

    def __call__(self, labels: Bool[Tensor, "S R n"]) -> Float[Tensor, "S R"]:
        sums = labels.new_zeros(3, *labels.shape[:2], dtype=torch.float64)
        pairs = torch.zeros_like(sums)
        parts = labels.split([block.shape[-1] for block in self.blocks], dim=-1)
        for block, part in zip(self.blocks, parts, strict=True):
            z = part.to(block.dtype)
            similarity = z @ block
            within = (similarity * z).sum(-1)
            cross = similarity.sum(-1) - within
            # what is in neither lies within the second sample, as the kernel is symmetric
            rest = block.sum((-2, -1))[:, None] - within - 2 * cross
            sums += torch.stack([within, cross, rest])
            n1 = z.sum(-1, dtype=torch.float64)
            n2 = block.shape[-1] - n1
            pairs += torch.stack([n1 * (n1 - 1), n1 * n2, n2 * (n2 - 1)])
        if not self._by_pairs:
            n1 = labels.sum(-1, dtype=torch.float64)
            n2 = labels.shape[-1] - n1
            pairs = torch.stack([n1 * (n1 - 1), n1 * n2, n2 * (n2 - 1)])
        # without pairs the sum may be off zero by rounding, and the mean is undefined all the same
        within, cross, rest = sums / pairs.where(pairs > 0, torch.nan)
        return within - 2 * cross + rest


class PooledCounts:
    """Distances of counts from a number per distinct (prompt, completion) row."""

    def __init__(self, ids: Sequence[Int[Tensor, "S b"]], kind: CountKind) -> None:
        starts = torch.tensor([0, *(part.shape[1] for part in ids)]).cumsum(0)
        # ids of a prompt are brought to [0, b), so that those of all prompts lie in [0, n)
        self.ids = torch.cat(
            [_dense_rows(part) + start for part, start in zip(ids, starts.tolist(), strict=False)],
            dim=1,
        )
        self._kind: CountKind = kind

    def __call__(self, labels: Bool[Tensor, "S R n"]) -> Float[Tensor, "S R"]:
        return count_statistics(self.ids, labels, self._kind)


def _dense_rows(ids: Int[Tensor, "S b"]) -> Int[Tensor, "S b"]:
    """Equal numbers of a row become equal numbers in [0, b)."""
    order = ids.argsort(dim=1)
    ordered = ids.gather(1, order)
    new = torch.zeros_like(ids)
    new[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
    return torch.empty_like(ids).scatter_(1, order, new)


@dataclass(frozen=True)
class Pool:
    """The pairs of two samples together, sorted by prompt.

    Attributes:
        codes: per prompt that occurs, (1, b, L).
        first: true for pairs of the first sample, (n,), in the sorted order.
        order: which pooled row (first sample's rows first) lies at each place, (n,).
        pad: code of padding.
    """

    codes: list[Tensor]
    first: Bool[Tensor, " n"]
    order: Int[Tensor, " n"]
    pad: int

    @classmethod
    def of(cls, a: CompletionSample, b: CompletionSample) -> "Pool":
        """Pools two samples.

        Raises:
            ValueError: they are not comparable.
        """
        check_comparable(a, b)
        prompts = torch.cat([a.prompts, b.prompts.to(a.prompts.device)])
        rows = torch.cat([a.completions, b.completions.to(a.completions.device)])
        order = prompts.argsort(stable=True)
        sizes = torch.bincount(prompts)
        codes = rows[order].split(sizes[sizes > 0].tolist())
        return cls([block[None] for block in codes], order < len(a), order, a.pad)

    @property
    def sizes(self) -> list[int]:
        """Pooled pairs of each prompt."""
        return [block.shape[1] for block in self.codes]
