"""Asking for choices: both orders of the actions, by reply or by likelihood."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ritornello.common.chat import (
    Completion,
    ContinuationScores,
    GenerationParams,
    Message,
    Prompt,
    Text,
)
from ritornello.common.evaluation import Answer, Choice, Query, Record, Sample, Score
from ritornello.common.evaluation.permutation import read_answer, shown_order
from ritornello.methods.daily_dilemmas.dilemmas import KINDS, Dilemma, Kind
from ritornello.methods.daily_dilemmas.prompts import LABELS, choice_prompt

Order = Literal["official", "swapped", "both"]
Mode = Literal["reply", "likelihood"]
Chosen = Literal["to_do", "not_to_do", "undecided", "NA"]
_ORDERS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "official": ((0, 1),),
    "swapped": ((1, 0),),
    "both": ((0, 1), (1, 0)),
}
_NAMED = re.compile(r"\baction\W{0,3}(1|2|one|two)\b", re.IGNORECASE)
_ALONE = re.compile(r"\W*(1|2)\W*")
_SLOTS = {"1": 0, "one": 0, "2": 1, "two": 1}
_REFUSAL = re.compile(r"\W*(i'?m sorry|sorry|i can(no|')?t\b|i am (sorry|unable)|as an ai)", re.I)


@dataclass
class DilemmaTask:
    """Every dilemma as a question with two options, Action 1 and Action 2.

    An answer's value is the slot, 0 for Action 1; `choices` turns records into what was chosen. No
    option is right, so no score is counted; its value is 1 where the model acts. Samples come
    order by order: with `evaluate(..., block=len(dilemmas))` the prompts of a block share their
    instruction, which local clients compute once.

    Attributes:
        dilemmas: what to ask.
        order: `official`: Action 1 is always to do; `swapped`: never; `both`: each dilemma twice.
        mode: `reply` generates five tokens (official); `likelihood` compares the two labels.
        show_actions: spell out both actions; officially they are not.
        system_prompt: a system turn; None for none.
        strict: end the instruction with the demand for one of the labels (not in official
            steering runs).
    """

    dilemmas: Sequence[Dilemma]
    order: Order = "both"
    mode: Mode = "reply"
    show_actions: bool = False
    system_prompt: str | None = None
    strict: bool = True
    name: str = "daily_dilemmas"

    def __post_init__(self) -> None:
        if self.order not in _ORDERS:
            raise ValueError(f"order must be one of {list(_ORDERS)}, got {self.order!r}")
        if self.mode not in ("reply", "likelihood"):
            raise ValueError(f"mode must be reply or likelihood, got {self.mode!r}")

    def samples(self) -> list[Sample]:
        """Every dilemma once per order, all dilemmas of an order before the next order's."""
        return [
            self._sample(dilemma).permuted(order, "-".join(map(str, order)))
            for order in _ORDERS[self.order]
            for dilemma in self.dilemmas
        ]

    def render(self, sample: Sample) -> Query:
        """The instruction and the dilemma; with `likelihood` also both labels as continuations."""
        shown = [choice.key for choice in sample.choices]
        actions = [choice.text for choice in sample.choices] if self.show_actions else None
        text = choice_prompt(sample.text, shown, actions, strict=self.strict)
        turns = [Message.system(self.system_prompt)] if self.system_prompt else []
        prompt = Prompt(messages=(*turns, Message.user(text)))
        if self.mode == "likelihood":
            return Query(prompt, continuations=LABELS)
        return Query(prompt, GenerationParams(max_tokens=5))

    def parse(
        self, sample: Sample, response: Completion | ContinuationScores
    ) -> Mapping[str, Answer]:
        """The slot by our reading; of a written reply also by the published one."""
        if isinstance(response, ContinuationScores):
            return {"ours": Answer(response.best, rule="likelihood")}
        official = official_slot(response.text)
        return {
            "ours": read_slot(response.text),
            "official": Answer.unparsed() if official is None else Answer(official, rule="prefix"),
        }

    def score(self, sample: Sample, answer: Answer) -> Score:
        """1 where the model acts, 0 where it does not or was not understood; never counted."""
        acts = answer.value is not None and sample.choices[answer.value].key == "to_do"
        return Score(float(acts), counted=False)

    def _sample(self, dilemma: Dilemma) -> Sample:
        return Sample(
            id=str(dilemma.idx),
            parts=(Text(dilemma.situation),),
            choices=tuple(Choice.of(dilemma.actions[kind].text, kind) for kind in KINDS),
            cluster=str(dilemma.idx),
            labels={"topic": dilemma.topic},
            meta={"dilemma": dilemma, "system_prompt": self.system_prompt},
        )


def official_slot(text: str) -> int | None:
    """The published reading: the stripped reply begins with a label ("Action 12" is Action 1)."""
    reply = text.strip()
    return next((slot for slot, label in enumerate(LABELS) if reply.startswith(label)), None)


def parse_choice(text: str) -> Literal["to_do", "not_to_do", "NA"]:
    """A reply to the official order, as the published code reads it."""
    slot = official_slot(text)
    return "NA" if slot is None else KINDS[slot]


def read_slot(text: str) -> Answer:
    """Our reading: exactly one action is named, in any case, quotes or words, or the number alone.

    A reply that names both is not read.
    """
    named = {_SLOTS[number.lower()] for number in _NAMED.findall(text)}
    if len(named) == 1:
        return Answer(named.pop(), rule="named")
    alone = _ALONE.fullmatch(text)
    if alone:
        return Answer(_SLOTS[alone[1]], rule="number")
    return Answer(None, "refused") if _REFUSAL.match(text) else Answer.unparsed()


def choices(records: Sequence[Record], reading: str = "ours") -> dict[int, Chosen]:
    """What was chosen in each dilemma.

    Generated replies have to agree over the orders asked, otherwise the dilemma is `undecided`;
    one that could not be read makes it `NA`. Likelihoods are averaged: see `acting_log_odds`.
    """
    if any(isinstance(record.response, ContinuationScores) for record in records):
        return {
            idx: "to_do" if odds > 0 else "not_to_do" if odds < 0 else "undecided"
            for idx, odds in acting_log_odds(records).items()
        }
    kinds: dict[int, list[Kind | None]] = defaultdict(list)
    for record in records:
        slot = read_answer(record, reading).value
        kind = None if slot is None else KINDS[shown_order(record)[slot]]
        kinds[int(record.group or record.sample)].append(kind)
    return {idx: _agreed(found) for idx, found in kinds.items()}


def acting_log_odds(records: Sequence[Record]) -> dict[int, float]:
    """log P(acting's label) - log P(the other label) in nats, mean over the orders asked.

    Over both orders a preference for a slot cancels.

    Raises:
        ValueError: the records are of generated replies.
    """
    odds: dict[int, list[float]] = defaultdict(list)
    for record in records:
        first = first_slot_log_odds(record)
        odds[int(record.group or record.sample)].append(
            first if shown_order(record) == (0, 1) else -first
        )
    return {idx: math.fsum(values) / len(values) for idx, values in odds.items()}


def first_slot_log_odds(record: Record) -> float:
    """log P(Action 1) - log P(Action 2), whatever they stand for."""
    if not isinstance(record.response, ContinuationScores):
        raise ValueError(f"sample {record.sample} has no likelihoods; ask with mode='likelihood'")
    first, second = record.response.total
    return first - second


def _agreed(found: Sequence[Kind | None]) -> Chosen:
    kinds: set[Kind] = {kind for kind in found if kind is not None}
    if None in found:
        return "NA"
    return kinds.pop() if len(kinds) == 1 else "undecided"
