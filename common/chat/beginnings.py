"""What token sequences begin with alike, so that it need not be computed for each of them."""

from collections.abc import Sequence
from itertools import pairwise

# Reading the weights once more costs about as much as computing this many tokens.
_TOKENS_PER_PASS = 128


def common_prefix(sequences: Sequence[list[int]]) -> int:
    """Length of the longest beginning that all sequences share."""
    if not sequences:
        return 0
    # the smallest and the largest sequence differ first where any two do
    low, high = min(sequences), max(sequences)
    for index, (a, b) in enumerate(zip(low, high, strict=False)):
        if a != b:
            return index
    return min(len(low), len(high))


def shared_beginnings(sequences: Sequence[list[int]]) -> tuple[list[list[int]], list[int]]:
    """Groups sequences by what they begin with: those beginnings first, then the rests.

    Both are computed as padded batches, of which the one grouping is taken that needs the fewest
    tokens, where it saves more than a pass. At least one token of every sequence is left.

    Returns:
        The beginning of each group, and the group of each sequence; one group with an empty
        beginning where nothing would be saved.
    """
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    shared = [common_prefix([sequences[a], sequences[b]]) for a, b in pairwise(order)]
    least = len(sequences) * max(map(len, sequences)) - _TOKENS_PER_PASS
    best: tuple[list[list[int]], list[int]] = [[]], [0] * len(sequences)
    for threshold in sorted(set(shared) - {0}):
        groups = [order[:1]]
        for place, length in zip(order[1:], shared, strict=True):
            if length < threshold:
                groups.append([])
            groups[-1].append(place)
        beginnings = [_beginning([sequences[place] for place in group]) for group in groups]
        of = {place: number for number, group in enumerate(groups) for place in group}
        rest = max(len(sequences[place]) - len(beginnings[of[place]]) for place in order)
        tokens = len(groups) * max(map(len, beginnings)) + len(sequences) * rest
        if tokens < least:
            least, best = tokens, (beginnings, [of[place] for place in range(len(sequences))])
    return best


def _beginning(group: Sequence[list[int]]) -> list[int]:
    return group[0][: min(common_prefix(group), min(map(len, group)) - 1)]
