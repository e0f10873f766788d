"""Which rows stay: the official default and the paper's table 5."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ritornello.methods.magpie.tags import DIFFICULTIES, QUALITIES

Row = Mapping[str, Any]
Rule = Callable[[Row], bool]


def _at_least(field: str, lowest: str, order: Sequence[str]) -> Rule:
    if lowest not in order:
        raise ValueError(f"{field} must be one of {list(order)}, got {lowest!r}")
    allowed = set(order[order.index(lowest) :])
    return lambda row: row[field] in allowed


def _above(field: str, threshold: float) -> Rule:
    def rule(row: Row) -> bool:
        value = row[field]
        if value is None:
            return False
        if math.isnan(value) or (math.isinf(value) and field != "min_neighbor_distance"):
            raise ValueError(f"{field} must be finite, got {value}")
        return value > threshold

    return rule


def quality_at_least(lowest: str) -> Rule:
    """`input_quality` is `lowest` or better; unlabelled rows go."""
    return _at_least("input_quality", lowest, QUALITIES)


def difficulty_at_least(lowest: str) -> Rule:
    """`difficulty` is `lowest` or harder; unlabelled rows go."""
    return _at_least("difficulty", lowest, DIFFICULTIES)


def reward_above(threshold: float) -> Rule:
    """`instruct_reward` > threshold (tau 1 of the paper)."""
    return _above("instruct_reward", threshold)


def reward_difference_above(threshold: float) -> Rule:
    """`reward_difference`, r(response) - r(base model's response), > threshold (tau 2)."""
    return _above("reward_difference", threshold)


def distance_above(threshold: float) -> Rule:
    """`min_neighbor_distance` > threshold; None, of a row without any other, is far enough."""
    beyond = _above("min_neighbor_distance", threshold)
    return lambda row: row["min_neighbor_distance"] is None or beyond(row)


def no_trailing_colon(row: Row) -> bool:
    """The instruction does not announce something that was cut away."""
    return not str(row["instruction"]).endswith(":")


def own_representative(row: Row) -> bool:
    """The row has no repeats, or is the first of its group."""
    similar = row["min_similar_conversation_id"]
    return similar is None or similar == row["conversation_id"]


# The notebook of the official repository, and rows "Air" and "Pro" of the paper's table 5.
FILTERS: Mapping[str, tuple[Rule, ...]] = {
    "none": (),
    "notebook": (
        quality_at_least("good"),
        reward_above(-10.0),
        no_trailing_colon,
        own_representative,
    ),
    "air": (
        quality_at_least("good"),
        difficulty_at_least("medium"),
        distance_above(0.0),
        reward_difference_above(0.0),
    ),
    "pro": (quality_at_least("average"), distance_above(0.0), reward_above(-12.0)),
}


def filter_rows(rows: Sequence[Row], rules: Sequence[Rule] | str) -> list[Row]:
    """The rows that satisfy every rule, in order.

    Args:
        rows: with the fields that the rules read.
        rules: rules, or the name of a set in `FILTERS`.

    Raises:
        ValueError: unknown name, a row without a field that a rule reads, a reward that is not
            finite.
    """
    if isinstance(rules, str):
        if rules not in FILTERS:
            raise ValueError(f"filter must be one of {sorted(FILTERS)}, got {rules!r}")
        rules = FILTERS[rules]
    try:
        return [row for row in rows if all(rule(row) for rule in rules)]
    except KeyError as error:
        raise ValueError(f"a row lacks the field {error} that the filter reads") from error


def longest(rows: Sequence[Row], n: int, *, seed: int = 42) -> list[Row]:
    """The n rows with the longest responses (characters, earlier row first), shuffled."""
    if n < 1:
        raise ValueError(f"n must be >= 1, got {n}")
    chosen = sorted(rows, key=lambda row: -len(str(row["response"])))[:n]
    return [chosen[i] for i in np.random.default_rng(seed).permutation(len(chosen))]
