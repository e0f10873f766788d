"""DailyDilemmas: the values that a model's choices reveal, and whether prompts steer them."""

from ritornello.methods.daily_dilemmas.dilemmas import (
    Action,
    Dilemma,
    load_daily_dilemmas,
    load_situations,
)
from ritornello.methods.daily_dilemmas.policies import (
    SlotBiased,
    Steerable,
    ValueAgent,
    policy_client,
)
from ritornello.methods.daily_dilemmas.preference import preference, preference_difference
from ritornello.methods.daily_dilemmas.principles import (
    Principle,
    conflict_dilemmas,
    elicit_principle,
    principle_score,
    value_relevance,
)
from ritornello.methods.daily_dilemmas.steering import (
    steering_effect,
    supporting_wins,
)
from ritornello.methods.daily_dilemmas.synthetic import make_synthetic_dilemmas
from ritornello.methods.daily_dilemmas.task import (
    DilemmaTask,
    choices,
    parse_choice,
)
from ritornello.methods.daily_dilemmas.values import THEORIES, ValueTable, load_values
from ritornello.methods.daily_dilemmas.written import written_dilemmas, written_principles

__all__ = [
    "THEORIES", "Action", "Dilemma", "DilemmaTask", "Principle", "SlotBiased", "Steerable",
    "ValueAgent", "ValueTable", "choices", "conflict_dilemmas", "elicit_principle",
    "load_daily_dilemmas", "load_situations", "load_values", "make_synthetic_dilemmas",
    "parse_choice", "policy_client", "preference", "preference_difference", "principle_score",
    "steering_effect", "supporting_wins", "value_relevance", "written_dilemmas",
    "written_principles",
]  # fmt: skip
