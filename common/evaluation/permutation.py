"""Every question in several orders of its options: position bias seen, and taken out."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ritornello.common.evaluation.sample import (
    Answer,
    Query,
    Record,
    Sample,
    SampleError,
    Score,
)
from ritornello.common.evaluation.task import Task

Scheme = Literal["rotations", "balanced", "all"]
Reducer = Literal["first", "mean", "circular", "plurality"]


def option_orders(
    count: int, scheme: Scheme = "rotations", *, limit: int | None = None, seed: int = 0
) -> list[tuple[int, ...]]:
    """Orders in which to show `count` options: slot j of an order shows option order[j].

    Args:
        count: how many options there are.
        scheme: `rotations`: order r shows option (j - r) mod count in slot j. `balanced`: `limit`
            orders (by default `count`) in which every option takes every slot equally often up to
            one, drawn from `seed`. `all`: every permutation.
        limit: only so many orders.
        seed: of the `balanced` orders.
    """
    if scheme == "rotations":
        orders = [tuple((slot - r) % count for slot in range(count)) for r in range(count)]
    elif scheme == "all":
        orders = list(itertools.permutations(range(count)))
    elif scheme == "balanced":
        rng = np.random.default_rng(seed)
        orders = []
        while len(orders) < (limit or count):
            base = rng.permutation(count)
            orders += [tuple(np.roll(base, shift).tolist()) for shift in range(count)]
    else:
        raise ValueError(f"scheme must be rotations, balanced or all, got {scheme!r}")
    return orders[:limit]


@dataclass
class Permuted:
    """A task whose every question is asked once per order of its options.

    The records of one question share `group`; `reduced` brings them back to one. The task itself
    reads and scores slots and sees `sample.choices` as they are shown.
    """

    task: Task
    scheme: Scheme = "rotations"
    limit: int | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.task.name} ({self.scheme})"

    def samples(self) -> list[Sample]:
        return [
            replace(permuted, cluster=sample.cluster or sample.id)
            for sample in self.task.samples()
            for order in option_orders(
                len(sample.choices), self.scheme, limit=self.limit, seed=self.seed
            )
            for permuted in (sample.permuted(order, "-".join(map(str, order))),)
        ]

    def render(self, sample: Sample) -> Query:
        return self.task.render(sample)

    def parse(self, sample: Sample, response: Any) -> Mapping[str, Answer]:
        return self.task.parse(sample, response)

    def score(self, sample: Sample, answer: Answer) -> Score:
        return self.task.score(sample, answer)


def shown_order(record: Record) -> tuple[int, ...]:
    """The order of options that a record of `Permuted` was asked in."""
    if record.group is None:
        raise SampleError(f"sample {record.sample} was not permuted")
    return tuple(int(index) for index in record.sample.removeprefix(f"{record.group}/").split("-"))


def reduced(records: Sequence[Record], how: Reducer, reading: str = "ours") -> list[Record]:
    """One record per question, from those of its orders.

    Args:
        records: what `evaluate(Permuted(...), ...)` returned.
        how: `first`: the first order alone, as without permutation. `mean`: the mean score.
            `circular`: right only if right in every order. `plurality`: the score of the option
            (by content) chosen most often; on a tie, and where nothing could be read, 0.
        reading: which reading of the answers.

    Returns:
        Records named by the question, with the one reading; the answers are those of the first
        order (`plurality`: of an order in which the winner was chosen).
    """
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.group or record.sample].append(record)
    kept = []
    for name, members in groups.items():
        chosen, value = _reduce(members, how, reading)
        counted = all(read_score(member, reading).counted for member in members)
        kept.append(
            replace(
                chosen,
                sample=name,
                group=None,
                answers={reading: read_answer(chosen, reading)},
                scores={reading: Score(value, counted)},
            )
        )
    return kept


def read_answer(record: Record, reading: str) -> Answer:
    """An answer by reading; a record without that reading has one for all: "ours"."""
    return record.answers.get(reading, record.answers["ours"])


def read_score(record: Record, reading: str) -> Score:
    """A score by reading; a record without that reading has one for all: "ours"."""
    return record.scores.get(reading, record.scores["ours"])


def _reduce(members: Sequence[Record], how: Reducer, reading: str) -> tuple[Record, float]:
    values = [read_score(member, reading).value for member in members]
    if how == "first":
        return members[0], values[0]
    if how == "mean":
        return members[0], sum(values) / len(values)
    if how == "circular":
        return members[0], float(all(value >= 1 for value in values))
    if how != "plurality":
        raise ValueError(f"how must be first, mean, circular or plurality, got {how!r}")
    votes: Counter[int] = Counter()
    of: dict[int, Record] = {}
    for member in members:
        slot = read_answer(member, reading).value
        if slot is not None:
            content = shown_order(member)[slot]
            votes[content] += 1
            of.setdefault(content, member)
    ranked = votes.most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        return members[0], 0.0
    winner = of[ranked[0][0]]
    return winner, read_score(winner, reading).value


@dataclass(frozen=True)
class PositionBias:
    """How often each slot was chosen.

    Attributes:
        counts: by slot.
        p_value: of a chi-square test against equal shares; meant for permuted questions, where
            the right answer takes every slot equally often.
        first: share of the first slot.
    """

    counts: tuple[int, ...]
    p_value: float
    first: float


def position_bias(records: Sequence[Record], slots: int, reading: str = "ours") -> PositionBias:
    """The histogram of chosen slots over single-choice answers.

    Raises:
        ValueError: no answer could be read.
    """
    from scipy import stats

    chosen = [read_answer(record, reading).value for record in records]
    counts = np.bincount([slot for slot in chosen if slot is not None], minlength=slots)
    if not counts.sum():
        raise ValueError("no answer could be read, so no slot was chosen")
    test = stats.chisquare(counts)
    return PositionBias(tuple(counts.tolist()), float(test.pvalue), float(counts[0] / counts.sum()))
