"""The published procedure as slow, obvious loops: the oracle of the fast form.

Every resample computes all kernels anew, pair by pair.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from ritornello.methods.model_equality_testing.sample import CompletionSample

Row = tuple[int, ...]
Pair = tuple[int, Row]
Kernel = Callable[[Row, Row], float]


def pairs_of(sample: CompletionSample) -> list[Pair]:
    """(prompt, completion) tuples."""
    rows = sample.completions.tolist()
    return [(x, tuple(y)) for x, y in zip(sample.prompts.tolist(), rows, strict=True)]


def hamming(y: Row, other: Row) -> float:
    """Equal positions."""
    return float(sum(a == b for a, b in zip(y, other, strict=True)))


def spectrum(k: int, cumulative: bool = True) -> Kernel:
    """Dot product of n-gram counts."""

    def grams(y: Row) -> Counter:
        sizes = range(1, k + 1) if cumulative else [k]
        return Counter(y[i : i + n] for n in sizes for i in range(len(y) - n + 1))

    def kernel(y: Row, other: Row) -> float:
        ours, theirs = grams(y), grams(other)
        return float(sum(count * theirs[gram] for gram, count in ours.items()))

    return kernel


def mmd(
    first: Sequence[Pair], second: Sequence[Pair], kernel: Kernel, *, by_pairs: bool = True
) -> float:
    """Unbiased MMD^2 (eq. 4; `by_pairs` is the published code's normalisation)."""

    def similarity(y: Row, other: Row) -> float:
        own = (kernel(y, y) or 1.0) * (kernel(other, other) or 1.0)
        return kernel(y, other) / own**0.5

    def mean(left: Sequence[Pair], right: Sequence[Pair], *, same: bool) -> float:
        total, equal_prompts = 0.0, 0
        for i, (x, y) in enumerate(left):
            for j, (x_other, y_other) in enumerate(right):
                if x == x_other and not (same and i == j):
                    total += similarity(y, y_other)
                    equal_prompts += 1
        everything = len(left) * (len(right) - same)
        return total / (equal_prompts if by_pairs else everything)

    return (
        mean(first, first, same=True)
        - 2 * mean(first, second, same=False)
        + mean(second, second, same=True)
    )


def count_distance(first: Sequence[Pair], second: Sequence[Pair], kind: str) -> float:
    """L1, L2 or centred chi-squared distance of the counts of distinct pairs."""
    c1, c2 = Counter(first), Counter(second)
    n1, n2 = len(first), len(second)
    total = 0.0
    for row in c1 | c2:
        a, b = c1[row], c2[row]
        if kind == "l1":
            total += abs(a / n1 - b / n2)
        elif kind == "l2":
            total += (a / n1 - b / n2) ** 2
        else:
            total += ((n2 * a - n1 * b) ** 2 - n2**2 * a - n1**2 * b) / (a + b)
    return total


def permuted_statistics(
    a: CompletionSample,
    b: CompletionSample,
    statistic: Callable[[Sequence[Pair], Sequence[Pair]], float],
    permutations: Sequence[Sequence[int]],
) -> list[float]:
    """The statistic after each reordering of the pooled pairs: the first N1 are sample one."""
    pool, n1 = pairs_of(a) + pairs_of(b), len(a)
    found = []
    for order in permutations:
        mixed = [pool[index] for index in order]
        found.append(statistic(mixed[:n1], mixed[n1:]))
    return found
