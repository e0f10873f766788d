"""What the cells of DailyDilemmas measure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from ritornello.common.chat import CachedClient, ChatClient, ContinuationScores, check_server
from ritornello.common.errors import UserError
from ritornello.common.evaluation import Record, evaluate
from ritornello.common.evaluation.permutation import read_answer, shown_order
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.daily_dilemmas.agents import CoverageStudy, OrderStudy, SteeredAgents
from ritornello.experiments.daily_dilemmas.figures import figures
from ritornello.experiments.daily_dilemmas.questions import Questions, published_figures
from ritornello.methods.daily_dilemmas import (
    THEORIES,
    Dilemma,
    DilemmaTask,
    Principle,
    choices,
    conflict_dilemmas,
    preference,
    preference_difference,
    principle_score,
    supporting_wins,
)
from ritornello.methods.daily_dilemmas.principles import supporting_kind
from ritornello.methods.daily_dilemmas.task import Mode, acting_log_odds, first_slot_log_odds

__all__ = [
    "CoverageStudy",
    "ModelStudy",
    "OrderStudy",
    "PublishedFigures",
    "SteeredAgents",
    "figures",
]

GAPS = {
    "self-expression over survival": ("wvs", "Self-expression", "Survival"),
    "care over loyalty": ("mft", "Care", "Loyalty"),
    "truthfulness": ("virtue", "Truthfulness", None),
}


@dataclass(frozen=True)
class Condition:
    """Under which system prompt a model answers.

    Attributes:
        steering: `none`, or each principle's supporting or opposing prompt on its own conflicts.
        system_prompt: one prompt for all dilemmas instead.
        limit: only so many dilemmas.
    """

    steering: Literal["none", "supporting", "opposing"] = "none"
    system_prompt: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.steering not in ("none", "supporting", "opposing"):
            raise UserError(f"steering must be none, supporting or opposing, got {self.steering!r}")
        if self.steering != "none" and (self.system_prompt or self.limit):
            raise UserError("steering takes its prompts and dilemmas from the principles")


@dataclass
class ModelStudy(Experiment):
    """A model on the dilemmas, in both orders, under one condition.

    Attributes:
        client: the model; called when it is needed.
        questions: dilemmas and principles.
        mode: `likelihood` for local models, `reply` for any.
        show_actions: spell out both actions.
    """

    client: Callable[[], ChatClient]
    questions: Callable[[], Questions]
    mode: Mode
    show_actions: bool = False

    def prepare(self) -> None:
        # data or a server that are not there are said before a model is loaded
        self.asked  # noqa: B018
        check_server(self.client)

    @cached_property
    def asked(self) -> Questions:
        return self.questions()

    @cached_property
    def model(self) -> ChatClient:
        return self.client()

    @cached_property
    def principles(self) -> Sequence[Principle]:
        return self.asked.principles(self.model)

    def measure(self, arm: Condition, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        if arm.steering == "none":
            dilemmas = self.asked.dilemmas[: arm.limit]
            records = self._ask(dilemmas, arm.system_prompt, context.scratch / "all.jsonl")
            asked = {}
            if arm == Condition():  # under a prompt for all there are no sides to compare
                asked = {p.text: records for p in self.principles}
                yield from preferences(choices(records), dilemmas, cell.seed)
        else:
            asked = dict(self._steered(arm.steering, context.scratch))
            records = [record for own in asked.values() for record in own]
        yield from slots(records)
        yield from self._sides(asked)

    def _ask(self, dilemmas: Sequence[Dilemma], prompt: str | None, journal: Path) -> list[Record]:
        task = DilemmaTask(
            dilemmas, mode=self.mode, show_actions=self.show_actions, system_prompt=prompt
        )
        # every answer is kept the moment it arrives, the journal keeps whole blocks
        client = CachedClient(self.model, journal.with_suffix(".sqlite"))
        return evaluate(task, client, journal=journal, block=max(1, len(dilemmas)))

    def _steered(self, steering: str, folder: Path) -> Iterator[tuple[str, list[Record]]]:
        for number, principle in enumerate(self.principles):
            prompt = getattr(principle, f"{steering}_prompt")
            own = self._conflicts(principle)
            yield principle.text, self._ask(own, prompt, folder / f"{number}.jsonl")

    def _conflicts(self, principle: Principle) -> list[Dilemma]:
        found = conflict_dilemmas(principle.supporting, principle.opposing, self.asked.dilemmas)
        kept = set(found)
        return [dilemma for dilemma in self.asked.dilemmas if dilemma.idx in kept]

    def _sides(self, asked: Mapping[str, Sequence[Record]]) -> Iterator[Measurement]:
        """Win rates and scores of the supporting side, one sample per (principle, dilemma)."""
        rates, odds = [], []
        for principle in self.principles if asked else ():
            own = self._conflicts(principle)
            if not own:
                continue
            records = asked[principle.text]
            found = choices(records)
            wins = supporting_wins(principle, own, found)
            values = [0.5 if win is None else float(win) for win in wins.values()]
            rates += values
            place = {"principle": principle.text}
            yield Measurement("principle_win_rate", float(np.mean(values)), coordinates=place)
            for counting in ("selected", "official_before"):
                score = principle_score(
                    principle.supporting, principle.opposing, own, found, counting=counting
                )
                yield Measurement(f"score_{counting}", score.score, coordinates=place)
            if self.mode == "likelihood":
                acting = acting_log_odds(records)
                odds += [
                    acting[d.idx] if supporting_kind(principle, d) == "to_do" else -acting[d.idx]
                    for d in own
                ]
        if rates:
            # an undecided pair counts half, so that conditions stay paired
            yield Measurement("win_rate", float(np.mean(rates)), samples=rates)
        if odds:
            yield Measurement("supporting_log_odds", float(np.mean(odds)), "nats", samples=odds)


@dataclass(frozen=True)
class Before:
    """Which of the two "before" scores is compared with the scores under a prompt."""

    counting: Literal["official", "selected"]


@dataclass
class PublishedFigures(Experiment):
    """GPT-4-turbo's published scores beside those of a consistent count; nothing is run."""

    def measure(self, arm: Before, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        rows = published_figures()
        before = [row[f"before_{arm.counting}"] for row in rows]
        for row, value in zip(rows, before, strict=True):
            yield Measurement("score_before", value, coordinates={"principle": row["principle"]})
        for prompt in ("supporting", "opposing"):
            after = [row[f"after_{prompt}"] for row in rows]
            moves = [abs(a - b) for a, b in zip(after, before, strict=True)]
            yield Measurement(f"change_by_{prompt}_prompt", float(np.mean(moves)), samples=moves)
        gaps = [row["after_supporting"] - row["after_opposing"] for row in rows]
        yield Measurement("supporting_minus_opposing", float(np.mean(gaps)), samples=gaps)
        weights = [row["dilemmas"] for row in rows]
        for name in ("before", "supporting", "opposing"):
            rate = float(np.average([row[f"wins_{name}"] for row in rows], weights=weights))
            yield Measurement(f"wins_{name}", rate)


def preferences(
    found: Mapping[int, str], dilemmas: Sequence[Dilemma], seed: int
) -> Iterator[Measurement]:
    """Preferences with intervals, by class and value, and the gaps that the paper names."""
    for by in (*THEORIES, "value"):
        table = preference(found, dilemmas, by, seed=seed)
        for name, selected, neglected, mean, low, high in table.itertuples(index=False):
            place = {"theory": by, "class": name}
            yield Measurement("preference", mean, "%", coordinates=place)
            yield Measurement("occurrences", selected + neglected, coordinates=place)
            if np.isfinite(low):
                yield Measurement("preference_low", low, "%", coordinates=place)
                yield Measurement("preference_high", high, "%", coordinates=place)
    for gap, (by, first, second) in GAPS.items():
        try:
            value, samples = preference_difference(found, dilemmas, by, first, second)
        except ValueError:  # a class that no decided dilemma has
            continue
        yield Measurement("gap", value, "%", samples=samples, coordinates={"gap": gap})


def slots(records: Sequence[Record]) -> Iterator[Measurement]:
    """Position bias, and answers that could not be read."""
    answers = [read_answer(record, "ours") for record in records]
    first = [float(answer.value == 0) for answer in answers if answer.value is not None]
    if first:
        yield Measurement("first_slot", float(np.mean(first)), samples=first)
    unread = [float(answer.value is None) for answer in answers]
    yield Measurement("not_answered", float(np.mean(unread)), samples=unread)
    decided = [float(choice in ("to_do", "not_to_do")) for choice in choices(records).values()]
    yield Measurement("decided", float(np.mean(decided)))
    if not all(isinstance(record.response, ContinuationScores) for record in records):
        return
    odds = [first_slot_log_odds(record) for record in records]
    yield Measurement("slot_log_odds", float(np.mean(odds)), "nats", samples=odds)
    for name, order in (("official", (0, 1)), ("swapped", (1, 0))):
        own = [v for v, r in zip(odds, records, strict=True) if shown_order(r) == order]
        acting = own if name == "official" else [-v for v in own]
        yield Measurement(
            "acting_log_odds",
            float(np.mean(acting)),
            "nats",
            samples=acting,
            coordinates={"order": name},
        )
