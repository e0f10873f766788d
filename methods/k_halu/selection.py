"""From five log-likelihoods to a set of options, with and without knowing how many are right."""

import math
from collections.abc import Collection, Hashable, Sequence

import numpy as np

from ritornello.methods.k_halu.metrics import OPTIONS, set_scores


def select_top_k(loglik: Sequence[float], lengths: Sequence[float], k: int) -> tuple[int, ...]:
    """The k options of greatest log-likelihood per unit of length, in ascending order.

    Among equals the later option is taken; the official code leaves that to NumPy's sort.

    Args:
        loglik: Σ log p over the tokens of each option.
        lengths: what each is divided by; the official rule counts the *characters* of the option
            with its number ("3. ...").
        k: how many to take.

    Raises:
        ValueError: k outside 1..5, a length that is not positive, or a log-likelihood that is NaN.
    """
    if not 1 <= k <= OPTIONS or k > len(loglik):
        raise ValueError(f"k must be in 1..{min(OPTIONS, len(loglik))}, got {k}")
    scores = _normalised(loglik, lengths)
    return tuple(sorted(np.argsort(scores, kind="stable")[-k:].tolist()))


def is_tied(loglik: Sequence[float], lengths: Sequence[float], k: int) -> bool:
    """Whether the k-th and the next option have one score, so that the choice is arbitrary."""
    scores = np.sort(_normalised(loglik, lengths))
    return k < len(scores) and bool(scores[-k] == scores[-k - 1])


def select_within(
    loglik: Sequence[float], lengths: Sequence[float], delta: float
) -> tuple[int, ...]:
    """The options whose score lies at most `delta` below the best one: no count is given away."""
    if not delta >= 0:
        raise ValueError(f"delta must be >= 0, got {delta}")
    scores = _normalised(loglik, lengths)
    return tuple(np.flatnonzero(scores >= scores.max() - delta).tolist())


def held_out_deltas(
    scores: Sequence[Sequence[float]],
    gold: Sequence[Collection[int]],
    documents: Sequence[Hashable],
) -> list[float]:
    """For each item the margin that gives the best mean item F1 on all *other* documents.

    Args:
        scores: five length-normalised log-likelihoods per item.
        gold: the right options.
        documents: the document of each item; items of one document are held out together.

    Returns:
        One margin per item, among the gaps that occur; the smallest of equally good ones.

    Raises:
        ValueError: there is only one document.
    """
    if len(set(documents)) < 2:
        raise ValueError("a margin cannot be held out: all items are about one document")
    gaps = np.array([np.max(row) - np.asarray(row) for row in scores])
    candidates = np.unique(gaps)
    f1 = np.array(
        [
            [set_scores(right, np.flatnonzero(gap <= delta))["f1"] for delta in candidates]
            for gap, right in zip(gaps, gold, strict=True)
        ]
    )
    total = f1.sum(0)
    per_document: dict[Hashable, np.ndarray] = {}
    for row, document in zip(f1, documents, strict=True):
        per_document[document] = per_document.get(document, 0) + row
    return [float(candidates[np.argmax(total - per_document[name])]) for name in documents]


def _normalised(loglik: Sequence[float], lengths: Sequence[float]) -> np.ndarray:
    if len(loglik) != len(lengths):
        raise ValueError(f"lengths must pair with loglik, got {len(lengths)} for {len(loglik)}")
    if any(math.isnan(value) for value in loglik):
        raise ValueError(f"log-likelihoods must be numbers, got {list(loglik)}")
    if not all(length > 0 for length in lengths):
        raise ValueError(f"lengths must be positive, got {list(lengths)}")
    return np.asarray(loglik, dtype=float) / np.asarray(lengths, dtype=float)
