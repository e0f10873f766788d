"""Word error rate."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WordErrors:
    """Errors and reference words of every utterance."""

    errors: list[int]
    reference_words: list[int]

    @property
    def rate(self) -> float:
        """Corpus word error rate in percent: all errors over all reference words."""
        return 100 * sum(self.errors) / sum(self.reference_words)


def edit_distance(hypothesis: Sequence[str], reference: Sequence[str]) -> int:
    """Fewest insertions, deletions and substitutions that turn one sequence into the other."""
    previous = list(range(len(reference) + 1))
    for row, word in enumerate(hypothesis, start=1):
        current = [row]
        for column, expected in enumerate(reference, start=1):
            substituted = previous[column - 1] + (word != expected)
            current.append(min(substituted, previous[column] + 1, current[-1] + 1))
        previous = current
    return previous[-1]


def word_errors(hyps: Sequence[str], refs: Sequence[str]) -> WordErrors:
    """Edit distances on words (not sub-words) of paired sentences."""
    if isinstance(hyps, str) or isinstance(refs, str):
        raise ValueError("hyps and refs must be lists of sentences, got a single text")
    if len(hyps) != len(refs):
        raise ValueError(f"hyps and refs must pair up, got {len(hyps)} and {len(refs)}")
    if not any(reference.split() for reference in refs):
        raise ValueError("refs must hold at least one word, got none")
    pairs = [(h.split(), r.split()) for h, r in zip(hyps, refs, strict=True)]
    return WordErrors([edit_distance(h, r) for h, r in pairs], [len(r) for _, r in pairs])


def word_error_rate(hyps: Sequence[str], refs: Sequence[str]) -> float:
    """Corpus word error rate in percent."""
    return word_errors(hyps, refs).rate
