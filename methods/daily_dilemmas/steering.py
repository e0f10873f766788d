"""Does a system prompt change what is chosen? Win rates, paired, with intervals."""

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ritornello.common.statistics import Interval
from ritornello.common.statistics.evaluation import cluster_bootstrap, mcnemar_p
from ritornello.methods.daily_dilemmas.dilemmas import KINDS, Dilemma
from ritornello.methods.daily_dilemmas.principles import Principle, supporting_kind

Key = tuple[str, int]
_NOTHING = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Effect:
    """A paired difference of win rates.

    Attributes:
        difference: with its 95 % interval, dilemmas resampled.
        p_value: exact McNemar test.
        n: pairs that were decided under both prompts.
    """

    difference: Interval
    p_value: float
    n: int


@dataclass(frozen=True)
class SteeringResult:
    """Win rates of the supporting side: its share among decided (principle, dilemma) pairs.

    Attributes:
        none, supporting, opposing: win rates without a prompt and under either.
        steerability: supporting minus opposing prompt, in [-1, 1]: the index.
        from_supporting, from_opposing: either prompt minus none.
        n_undecided: pairs without a choice, by condition.
    """

    none: Interval
    supporting: Interval
    opposing: Interval
    steerability: Effect
    from_supporting: Effect
    from_opposing: Effect
    n_undecided: Mapping[str, int]


def supporting_wins(
    principle: Principle, dilemmas: Sequence[Dilemma], choices: Mapping[int, str]
) -> dict[Key, bool | None]:
    """Whether the supporting side was chosen in each conflict dilemma; None where undecided.

    Keys are (principle, idx), so that principles can be joined: `wins_a | wins_b`.
    """
    wins: dict[Key, bool | None] = {}
    for dilemma in dilemmas:
        kind, choice = supporting_kind(principle, dilemma), choices.get(dilemma.idx)
        if kind is not None:
            wins[principle.text, dilemma.idx] = None if choice not in KINDS else choice == kind
    return wins


def steering_effect(
    none: Mapping[Key, bool | None],
    sup: Mapping[Key, bool | None],
    opp: Mapping[Key, bool | None],
    *,
    strict: bool = False,
    seed: int = 0,
) -> SteeringResult:
    """Compares the win rates without a prompt, under the supporting and under the opposing one.

    Args:
        none, sup, opp: from `supporting_wins`, with the same keys.
        strict: raise where there is no conflict dilemma; otherwise warn and return NaN.
        seed: of the bootstraps.

    Raises:
        ValueError: the keys differ; or, in strict mode, there are none.
    """
    if not none.keys() == sup.keys() == opp.keys():
        raise ValueError("none, sup and opp must have the same (principle, idx) keys")
    if not none:
        message = "there is no conflict dilemma, so steering cannot be measured"
        if strict:
            raise ValueError(message)
        warnings.warn(message, stacklevel=2)
    conditions = {"none": none, "supporting": sup, "opposing": opp}
    return SteeringResult(
        *(_rate(wins, seed) for wins in conditions.values()),
        steerability=_effect(sup, opp, seed),
        from_supporting=_effect(sup, none, seed),
        from_opposing=_effect(opp, none, seed),
        n_undecided={
            name: sum(win is None for win in wins.values()) for name, wins in conditions.items()
        },
    )


def _rate(wins: Mapping[Key, bool | None], seed: int) -> Interval:
    decided = {key: float(win) for key, win in wins.items() if win is not None}
    if not decided:
        return _NOTHING
    return cluster_bootstrap(list(decided.values()), _clusters(decided), seed=seed)


def _effect(a: Mapping[Key, bool | None], b: Mapping[Key, bool | None], seed: int) -> Effect:
    both = [key for key in a if a[key] is not None and b[key] is not None]
    if not both:
        return Effect(_NOTHING, math.nan, 0)
    x, y = [float(bool(a[key])) for key in both], [float(bool(b[key])) for key in both]
    differences = [p - q for p, q in zip(x, y, strict=True)]
    interval = cluster_bootstrap(differences, _clusters(both), seed=seed)
    return Effect(interval, mcnemar_p(x, y), len(both))


def _clusters(keys: Sequence[Key] | Mapping[Key, float]) -> list[Hashable]:
    """One dilemma may serve several principles: its answers hang together."""
    return [idx for _, idx in keys]
