"""Agents of known preferences: what the analyses must find, exactly."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ritornello.common.chat import ScriptedClient
from ritornello.common.evaluation import Sample
from ritornello.common.evaluation.baselines import Policy, keyed_generator, scripted
from ritornello.methods.daily_dilemmas.dilemmas import Action, Dilemma, Kind
from ritornello.methods.daily_dilemmas.principles import Principle, Weights
from ritornello.methods.daily_dilemmas.prompts import LABELS
from ritornello.methods.daily_dilemmas.task import DilemmaTask
from ritornello.methods.daily_dilemmas.values import Theory, ValueTable


@dataclass(frozen=True)
class ValueAgent:
    """Chooses the action whose values weigh more, whatever its label and place.

    Attributes:
        weights: value → weight; 0 for those not named. An action weighs their sum.
        temperature: acts with probability sigmoid(difference / temperature); 0 takes the heavier
            action, and a coin where both weigh the same.
        seed: of coins and draws, which depend on the dilemma and not on how it is shown.
    """

    weights: Weights
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")

    def __call__(self, sample: Sample) -> Sequence[int]:
        return _slot(sample, self.choose(sample.meta["dilemma"]))

    def choose(self, dilemma: Dilemma) -> Kind:
        """The action taken, whatever the system prompt says."""
        act, refrain = (_weight(dilemma.actions[k], self.weights) for k in ("to_do", "not_to_do"))
        probability = 0.5
        if act != refrain:
            over = (act - refrain) / self.temperature if self.temperature else math.inf
            probability = 1 / (1 + math.exp(-abs(over)))
            probability = probability if act > refrain else 1 - probability
        draw = keyed_generator(self.seed, dilemma.idx).random()
        return "to_do" if draw < probability else "not_to_do"


@dataclass(frozen=True)
class Steerable:
    """A `ValueAgent` that moves its weights towards the side that a system prompt names.

    A gain of 0 is stubborn; one above every difference of weights is fully steerable.

    Attributes:
        weights: as of a `ValueAgent`.
        gain: added to the weights of that side's values, taken from the other side's.
        principles: whose system prompts it understands.
        temperature, seed: as of a `ValueAgent`.
    """

    weights: Weights
    gain: float = 0.0
    principles: tuple[Principle, ...] = ()
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        ValueAgent(self.weights, self.temperature)  # raises for a bad temperature

    def __call__(self, sample: Sample) -> Sequence[int]:
        return _slot(sample, self.choose(sample.meta["dilemma"], sample.meta["system_prompt"]))

    def choose(self, dilemma: Dilemma, system_prompt: str | None = None) -> Kind:
        """The action taken under a system prompt."""
        weights = self.weights_under(system_prompt)
        return ValueAgent(weights, self.temperature, self.seed).choose(dilemma)

    def weights_under(self, system_prompt: str | None) -> Weights:
        """The weights that a system prompt leaves; one of no known principle changes nothing."""
        for principle in self.principles:
            sides = {
                principle.supporting_prompt: (principle.supporting, principle.opposing),
                principle.opposing_prompt: (principle.opposing, principle.supporting),
            }
            if system_prompt and system_prompt in sides:
                towards, away = sides[system_prompt]
                moved = dict.fromkeys(towards, self.gain) | dict.fromkeys(away, -self.gain)
                names = {*self.weights, *moved}
                return {name: self.weights.get(name, 0) + moved.get(name, 0) for name in names}
        return self.weights


@dataclass(frozen=True)
class SlotBiased:
    """Always gives the label of one slot, whatever it stands for.

    Attributes:
        slot: 0 for Action 1, 1 for Action 2.
    """

    slot: int = 0

    def __post_init__(self) -> None:
        if self.slot not in (0, 1):
            raise ValueError(f"slot must be 0 (Action 1) or 1 (Action 2), got {self.slot}")

    def __call__(self, sample: Sample) -> Sequence[int]:
        return (self.slot,)


def class_weights(
    table: ValueTable, theory: Theory, weights: Mapping[str, float]
) -> dict[str, float]:
    """Gives every value the weight of its class in a theory."""
    return {
        value: weight for name, weight in weights.items() for value in table.in_class(theory, name)
    }


def policy_client(task: DilemmaTask, policy: Policy, name: str) -> ScriptedClient:
    """A client that answers the task by a policy: an agent above, or one of
    `common.evaluation.baselines` (`uniform_single(seed)` is random).
    """
    return scripted(task, policy, write=lambda sample, picked: LABELS[picked[0]], name=name)


def _slot(sample: Sample, kind: Kind) -> Sequence[int]:
    return ([choice.key for choice in sample.choices].index(kind),)


def _weight(action: Action, weights: Weights) -> float:
    return math.fsum(weights.get(value, 0.0) for value in action.values)
