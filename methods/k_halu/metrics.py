"""Scores of sets of options: the official ones, and what they should be read beside."""

from collections.abc import Collection, Mapping, Sequence
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ritornello.common.statistics.intervals import tails

OPTIONS = 5
Average = Literal["official", "items", "micro"]
Rule = Literal["known_count", "any_hit", "subset"]


def set_scores(gold: Collection[int], picked: Collection[int]) -> dict[str, float]:
    """Scores of one item.

    Returns:
        `set_match` (1 iff the sets are equal: the official acc_norm and exact match), `jaccard`,
        `precision`, `recall`, `f1` (0 where undefined), `any_hit` (1 iff a picked option is
        right), `over` and `under` (options picked too many, and missed), `decisions` (share of
        the five yes/no decisions that are right).
    """
    g, p = set(gold), set(picked)
    hits = len(g & p)
    over, under = len(p - g), len(g - p)
    return {
        "set_match": float(g == p),
        "jaccard": hits / len(g | p),
        "precision": hits / len(p) if p else 0.0,
        "recall": hits / len(g),
        "f1": 2 * hits / (len(g) + len(p)),
        "any_hit": float(hits > 0),
        "over": float(over),
        "under": float(under),
        "decisions": 1 - (over + under) / OPTIONS,
    }


def multilabel_macro(
    gold: Sequence[Collection[int]],
    pred: Sequence[Collection[int]],
    average: Average = "official",
) -> dict[str, float]:
    """Precision, recall and F1 over a set of items; 0 where a quotient is undefined.

    Args:
        gold, pred: 0-based options of each item.
        average: `official`: each of the options that occur in `gold` or `pred` is a class of its
            own, and the classes are averaged. "Option 3 is right" means something else in every
            item, so this says how a model treats *places*. `items`: each item's own scores,
            averaged. `micro`: over all decisions together.
    """
    _paired(gold, pred)
    g, p = _matrix(gold), _matrix(pred)
    hits = g & p
    if average == "items":
        axis = 1
    elif average in ("official", "micro"):
        axis = 0
    else:
        raise ValueError(f"average must be official, items or micro, got {average!r}")
    counts = np.stack([m.sum(axis) for m in (hits, g, p)]).astype(float)
    if average == "official":
        occurs = (g | p).any(0)
        counts = counts[:, occurs]
        if occurs.sum() == 1:
            counts = np.concatenate([counts, _complement(g[:, occurs], p[:, occurs])], axis=1)
    elif average == "micro":
        counts = counts.sum(1, keepdims=True)
    return {name: float(v.mean()) for name, v in _quotients(*counts).items()}


def macro_intervals(
    gold: Sequence[Collection[int]],
    pred: Sequence[Collection[int]],
    *,
    clusters: Sequence[object] | None = None,
    resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap of the official macro scores; whole clusters (documents) are drawn.

    Classes that do not occur in a resample are left out of its mean, as they are in the sample.
    """
    _paired(gold, pred)
    g, p = _matrix(gold), _matrix(pred)
    counts = np.concatenate([g & p, g, p], axis=1).astype(float)
    if clusters is not None:
        places = np.unique([str(c) for c in clusters], return_inverse=True)[1]
        grouped = np.zeros((int(places.max()) + 1, counts.shape[1]))
        np.add.at(grouped, places, counts)
        counts = grouped
    kinds, weights = np.unique(counts, axis=0, return_counts=True)
    rng = np.random.Generator(np.random.PCG64(seed))
    total = int(weights.sum())
    drawn = rng.multinomial(total, weights / total, size=resamples) @ kinds
    hits, golds, picks = np.split(drawn, 3, axis=1)
    present = (golds + picks) > 0
    found = {}
    for name, values in _quotients(hits, golds, picks).items():
        means = (values * present).sum(1) / np.maximum(present.sum(1), 1)
        low, high = np.quantile(means, tails(level))
        found[name] = (float(low), float(high))
    return found


def decision_mcc(gold: Sequence[Collection[int]], pred: Sequence[Collection[int]]) -> float:
    """Matthews correlation of the 5n yes/no decisions; 0 where undefined."""
    _paired(gold, pred)
    g, p = _matrix(gold).ravel(), _matrix(pred).ravel()
    if g.std() == 0 or p.std() == 0:
        return 0.0
    return float(np.corrcoef(g, p)[0, 1])


def expected_chance(n_gold: Sequence[int], rule: Rule = "known_count") -> float:
    """Mean score of a uniform guess.

    Args:
        n_gold: how many options are right, per item.
        rule: `known_count`: a set of the right size must match, 1 / C(5, n). `any_hit`: one pick
            must be right, n / 5. `subset`: a non-empty set must match, 1 / 31.
    """
    if not len(n_gold) or not all(1 <= n <= OPTIONS for n in n_gold):
        raise ValueError(f"n_gold must be numbers from 1 to {OPTIONS}, got {list(n_gold)[:10]}")
    if rule == "subset":
        return 1 / (2**OPTIONS - 1)
    if rule == "any_hit":
        return float(np.mean([n / OPTIONS for n in n_gold]))
    if rule == "known_count":
        return float(np.mean([1 / comb(OPTIONS, n) for n in n_gold]))
    raise ValueError(f"rule must be known_count, any_hit or subset, got {rule!r}")


def _quotients(
    hits: NDArray[np.float64], gold: NDArray[np.float64], picked: NDArray[np.float64]
) -> Mapping[str, NDArray[np.float64]]:
    def share(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.divide(a, b, out=np.zeros_like(a), where=b > 0)

    return {
        "precision": share(hits, picked),
        "recall": share(hits, gold),
        "f1": share(2 * hits, gold + picked),
    }


def _complement(g: NDArray[np.bool_], p: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Counts of "not this option" as a class, (3, 1), or (3, 0) where it never occurs.

    With a single option in all of the items scikit-learn, and so the official score, sees a binary
    problem and averages over both of its sides.
    """
    counts = np.array([[(~g & ~p).sum()], [(~g).sum()], [(~p).sum()]], dtype=float)
    return counts if counts[1:].any() else counts[:, :0]


def _matrix(sets: Sequence[Collection[int]]) -> NDArray[np.bool_]:
    matrix = np.zeros((len(sets), OPTIONS), dtype=bool)
    for row, members in enumerate(sets):
        for member in members:
            if not 0 <= member < OPTIONS:
                raise ValueError(f"options are 0..{OPTIONS - 1}, got {member} in item {row}")
            matrix[row, member] = True
    return matrix


def _paired(gold: Sequence[Collection[int]], pred: Sequence[Collection[int]]) -> None:
    if len(gold) != len(pred) or not len(gold):
        raise ValueError(
            f"gold and pred must pair up and not be empty, got {len(gold)} and {len(pred)}"
        )
