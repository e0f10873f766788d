"""Generated dilemmas: 17 topics x 6 roles x 4 situations, with values drawn from the 301."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from ritornello.methods.daily_dilemmas.dilemmas import KINDS, Action, Dilemma, Kind
from ritornello.methods.daily_dilemmas.values import ValueTable, load_values
from ritornello.methods.daily_dilemmas.written import refrain

MAX_VALUES = 4  # a side has one to four


@dataclass(frozen=True)
class _Pattern:
    topic: str
    situation: str
    act: str
    values: tuple[tuple[str, ...], tuple[str, ...]]


def make_synthetic_dilemmas(
    n: int,
    seed: int,
    values: ValueTable | None = None,
    overlap: float = 0.0,
    *,
    conflict: tuple[Collection[str], Collection[str]] = ((), ()),
    shared: float = 0.2,
) -> list[Dilemma]:
    """Draws dilemmas whose texts differ and name no value, so that no reader can match strings.

    Args:
        n: how many, up to what the templates can tell apart.
        seed: of all draws.
        values: the table; default: the published 301.
        overlap: share of dilemmas on which the two lists of `conflict` conflict; in the others,
            none of their values occurs.
        conflict: two lists of values of a principle.
        shared: share of dilemmas in which one value stands on both sides.

    Returns:
        Dilemmas with idx 1..n; one to four values a side, one more where a value is shared.

    Raises:
        ValueError: a share outside [0, 1], n out of range, or `overlap` without both lists.
    """
    for name, share in (("shared", shared), ("overlap", overlap)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {share}")
    if overlap and not all(conflict):
        raise ValueError(f"overlap={overlap} needs two lists of values in conflict")
    if common := set(conflict[0]) & set(conflict[1]):
        raise ValueError(f"conflict must be two lists without a common value, got {sorted(common)}")
    table = values or load_values()
    for name in (*conflict[0], *conflict[1]):
        table[name]  # raises for unknown names
    patterns, circumstances = _patterns(), _frames()["circumstances"]
    if not 0 < n <= len(patterns) * len(circumstances):
        raise ValueError(f"n must be in 1..{len(patterns) * len(circumstances)}, got {n}")
    rng = np.random.default_rng(seed)
    texts = rng.permutation(len(patterns) * len(circumstances))[:n]
    shares = set(rng.permutation(n)[: round(shared * n)].tolist())
    conflicts = set(rng.permutation(n)[: round(overlap * n)].tolist())
    dilemmas = []
    for place, text in enumerate(texts.tolist()):
        number, circumstance = text % len(patterns), circumstances[text // len(patterns)]
        pattern = patterns[number]
        sides = _draw_values(rng, pattern, table, conflict, conflicting=place in conflicts)
        if place in shares:
            giver = int(rng.integers(2))
            free = [v for v in sides[giver] if v not in conflict[0] and v not in conflict[1]]
            if free:
                sides[1 - giver].append(free[int(rng.integers(len(free)))])
        acts = (pattern.act, refrain(pattern.act))
        actions: dict[Kind, Action] = {
            kind: Action.of(act, side, table)
            for kind, act, side in zip(KINDS, acts, sides, strict=True)
        }
        situation = pattern.situation.replace("{circumstance}", circumstance)
        dilemmas.append(Dilemma(place + 1, situation, actions, pattern.topic))
    return dilemmas


def _draw_values(
    rng: np.random.Generator,
    pattern: _Pattern,
    table: ValueTable,
    conflict: tuple[Collection[str], Collection[str]],
    *,
    conflicting: bool,
) -> list[list[str]]:
    """Values of both sides; those of the two lists only where they are to conflict."""
    sides = []
    listed = {*conflict[0], *conflict[1]}
    for candidates in pattern.values:
        free = [value for value in candidates if value not in listed]
        free = free or [value for value in table if value not in listed]
        most = min(MAX_VALUES - conflicting, len(free))
        count = int(rng.integers(1, most + 1))
        sides.append([free[i] for i in rng.choice(len(free), count, replace=False).tolist()])
    if conflicting:
        swap = int(rng.integers(2))
        for side, names in enumerate(conflict):
            sides[side ^ swap].append(list(names)[int(rng.integers(len(names)))])
    return sides


@cache
def _patterns() -> tuple[_Pattern, ...]:
    return tuple(
        _Pattern(topic, f"You are {role}. {{circumstance}} {text}", act, (tuple(do), tuple(wait)))
        for topic, frame in _frames()["topics"].items()
        for role in frame["roles"]
        for text, act, do, wait in frame["patterns"]
    )


@cache
def _frames() -> dict:
    file = resources.files("ritornello.methods.daily_dilemmas").joinpath("frames.json")
    return json.loads(file.read_text(encoding="utf-8"))
