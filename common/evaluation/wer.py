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


def word_errors(hypotheses: Sequence[str], references: Sequence[str]) -> WordErrors:
    """Edit distances on words (not sub-words) of paired sentences."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError("hypotheses and references must be lists of sentences, got a single text")
    if len(hypotheses) != len(references):
        raise ValueError(
            f"hypotheses and references must pair up, got {len(hypotheses)} and {len(references)}"
        )
    if not any(reference.split() for reference in references):
        raise ValueError("references must hold at least one word, got none")
    pairs = [(h.split(), r.split()) for h, r in zip(hypotheses, references, strict=True)]
    return WordErrors([edit_distance(h, r) for h, r in pairs], [len(r) for _, r in pairs])


def word_error_rate(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus word error rate in percent."""
    return word_errors(hypotheses, references).rate
