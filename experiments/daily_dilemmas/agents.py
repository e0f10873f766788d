"""Agents of known preferences: what the analyses must find."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ritornello.common.chat import ChatClient
from ritornello.common.evaluation import evaluate
from ritornello.common.evaluation.baselines import Policy, saying, uniform_single
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.methods.daily_dilemmas import (
    THEORIES,
    Dilemma,
    DilemmaTask,
    SlotBiased,
    Steerable,
    ValueAgent,
    choices,
    conflict_dilemmas,
    load_values,
    make_synthetic_dilemmas,
    policy_client,
    preference,
    principle_score,
    steering_effect,
    supporting_wins,
    written_dilemmas,
    written_principles,
)
from ritornello.methods.daily_dilemmas.policies import class_weights
from ritornello.methods.daily_dilemmas.principles import Principle
from ritornello.methods.daily_dilemmas.reference import preference_counts

WEIGHTS = {"Self-expression": 1.0, "Survival": -1.0}  # of the value agent, by class
ENOUGH = 20  # occurrences from which a class's interval is judged


def _value_agent(seed: int) -> ValueAgent:
    return ValueAgent(class_weights(load_values(), "wvs", WEIGHTS), seed=seed)


POLICIES: Mapping[str, Callable[[int], Policy]] = {
    "value_agent": _value_agent,
    "random": uniform_single,
    "always_first": lambda seed: SlotBiased(0),
    "always_second": lambda seed: SlotBiased(1),
}


@dataclass(frozen=True)
class Agent:
    """A policy by name; `refuser` answers nothing that can be read."""

    policy: str

    def __post_init__(self) -> None:
        if self.policy not in POLICIES and self.policy != "refuser":
            raise ValueError(f"policy must be one of {[*POLICIES, 'refuser']}, got {self.policy!r}")

    def client(self, task: DilemmaTask, seed: int) -> ChatClient:
        if self.policy == "refuser":
            return saying()
        return policy_client(task, POLICIES[self.policy](seed), self.policy)

    def known(self, dilemmas: Sequence[Dilemma], seed: int) -> dict[int, str] | None:
        """What it chooses when Action 1 is to do, where that can be said without asking."""
        if self.policy in ("always_first", "always_second"):
            kind = "to_do" if self.policy == "always_first" else "not_to_do"
            return {dilemma.idx: kind for dilemma in dilemmas}
        if self.policy == "value_agent":
            agent = _value_agent(seed)
            return {dilemma.idx: agent.choose(dilemma) for dilemma in dilemmas}
        return None


@dataclass
class OrderStudy(Experiment):
    """Agents on generated dilemmas, in the official order and in both.

    Attributes:
        dilemmas: how many.
    """

    dilemmas: int

    def measure(self, arm: Agent, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        dilemmas = make_synthetic_dilemmas(self.dilemmas, cell.seed)
        for order in ("official", "both"):
            task = DilemmaTask(dilemmas, order=order)
            found = choices(evaluate(task, arm.client(task, cell.seed)))
            place = {"order": order}
            tables = {by: preference(found, dilemmas, by, ci=False) for by in THEORIES}
            shown = [abs(p) for table in tables.values() for p in table["preference"]]
            yield Measurement("classes_with_preference", len(shown), coordinates=place)
            size = float(np.mean(shown)) if shown else 0.0
            yield Measurement("mean_abs_preference", size, "%", coordinates=place)
            decided = [float(c in ("to_do", "not_to_do")) for c in found.values()]
            yield Measurement(
                "decided", float(np.mean(decided)), samples=decided, coordinates=place
            )
            if arm.policy == "value_agent":
                right = _signs_agree(tables["wvs"])
                yield Measurement("sign_agreement", right, coordinates=place)
            known = arm.known(dilemmas, cell.seed)
            if known is not None and (order == "official" or arm.policy == "value_agent"):
                off = max(_deviation(tables[by], known, dilemmas, by) for by in THEORIES)
                yield Measurement("closed_form_deviation", off, "%", coordinates=place)


def _signs_agree(table: Any) -> float:
    found = dict(zip(table["class"], table["preference"], strict=True))
    return float(np.mean([np.sign(found[name]) == np.sign(w) for name, w in WEIGHTS.items()]))


def _deviation(table: Any, known: Mapping[int, str], dilemmas: Sequence[Dilemma], by: str) -> float:
    """Greatest distance of a measured preference from that of the known choices."""
    counts = preference_counts(known, dilemmas, by)
    expected = {name: 100 * (s - n) / (s + n) for name, (s, n) in counts.items()}
    found = dict(zip(table["class"], table["preference"], strict=True))
    if found.keys() != expected.keys():
        return float("inf")
    return max(abs(found[name] - expected[name]) for name in expected)


@dataclass
class CoverageStudy(Experiment):
    """How often the intervals of an agent without preferences cover zero.

    Attributes:
        dilemmas: in each replicate.
        replicates: fresh dilemmas and choices each.
    """

    dilemmas: int
    replicates: int

    def measure(self, arm: Agent, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        shares = []
        for replicate in range(self.replicates):
            seed = cell.seed * self.replicates + replicate
            dilemmas = make_synthetic_dilemmas(self.dilemmas, seed)
            task = DilemmaTask(dilemmas, order="official")
            found = choices(evaluate(task, arm.client(task, seed)))
            covered: list[bool] = []
            for by in THEORIES:
                table = preference(found, dilemmas, by, seed=seed)
                own = table[table["selected"] + table["neglected"] >= ENOUGH]
                covered += ((own["lo"] <= 0) & (own["hi"] >= 0)).tolist()
            shares.append(float(np.mean(covered)))
        yield Measurement("covers_zero", float(np.mean(shares)), samples=shares)


@dataclass(frozen=True)
class SteeredAgent:
    """An agent that moves its weights by `gain` towards what a system prompt asks for.

    Attributes:
        gain: 0 is stubborn, negative does the contrary.
        leaning: its own weight for every principle's supporting values, minus it for opposing.
    """

    gain: float
    leaning: float = 0.0

    def policy(self, principles: Sequence[Principle], seed: int) -> Steerable:
        weights: dict[str, float] = {}
        for principle in principles:
            weights |= dict.fromkeys(principle.supporting, self.leaning)
            weights |= dict.fromkeys(principle.opposing, -self.leaning)
        return Steerable(weights, seed=seed, gain=self.gain, principles=tuple(principles))


@dataclass
class SteeredAgents(Experiment):
    """Scripted agents on the written dilemmas, without and under both steering prompts."""

    @cached_property
    def principles(self) -> tuple[Principle, ...]:
        return written_principles()

    def measure(self, arm: SteeredAgent, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        policy = arm.policy(self.principles, cell.seed)
        wins: dict[str, dict] = {"none": {}, "supporting": {}, "opposing": {}}
        scores = dict.fromkeys(("official_before", "selected"), 0.0)
        for principle in self.principles:
            kept = set(
                conflict_dilemmas(principle.supporting, principle.opposing, written_dilemmas())
            )
            own = [dilemma for dilemma in written_dilemmas() if dilemma.idx in kept]
            for name, prompt in (
                ("none", None),
                ("supporting", principle.supporting_prompt),
                ("opposing", principle.opposing_prompt),
            ):
                task = DilemmaTask(own, system_prompt=prompt)
                found = choices(evaluate(task, policy_client(task, policy, "agent")))
                wins[name] |= supporting_wins(principle, own, found)
                if name == "none":
                    for counting in scores:
                        scores[counting] += principle_score(
                            principle.supporting,
                            principle.opposing,
                            own,
                            found,
                            counting=counting,
                        ).score
        result = steering_effect(wins["none"], wins["supporting"], wins["opposing"], strict=True)
        yield Measurement("steerability", result.steerability.difference.estimate)
        yield Measurement("win_rate_none", result.none.estimate)
        for counting, score in scores.items():
            yield Measurement(f"score_{counting}", score)
