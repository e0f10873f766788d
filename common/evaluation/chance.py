"""What answering without reading the question scores."""

from collections import Counter
from collections.abc import Sequence
from math import comb

from ritornello.common.evaluation.sample import Sample


def expected_random(samples: Sequence[Sample], *, known_count: bool = False) -> float:
    """Expected share of right answers of a uniform guess.

    Args:
        samples: questions with options.
        known_count: the guesser knows how many options are right and must name exactly them:
            1 / C(k, n); otherwise it names one of k options: n / k.
    """
    if not samples:
        raise ValueError("samples must hold at least one question")
    shares = [
        1 / comb(len(sample.choices), len(sample.gold))
        if known_count
        else len(sample.gold) / len(sample.choices)
        for sample in samples
    ]
    return sum(shares) / len(shares)


def expected_random_subset(options: int) -> float:
    """Chance of a uniform guess among the non-empty sets of options: 1 / (2^k - 1)."""
    return 1 / (2**options - 1)


def most_frequent(samples: Sequence[Sample]) -> tuple[int, ...]:
    """The right answer that occurs most often, the smallest of equals.

    Chosen on the very questions it is then scored on, as papers do: this is optimistic.
    """
    counts = Counter(sample.gold for sample in samples)
    return min(counts, key=lambda gold: (-counts[gold], gold))
