"""48 hand-written dilemmas under eight principles whose values are known; all text is ours."""

import json
from functools import cache
from importlib import resources

from ritornello.methods.daily_dilemmas.dilemmas import Action, Dilemma, Kind
from ritornello.methods.daily_dilemmas.principles import Principle
from ritornello.methods.daily_dilemmas.prompts import system_prompt
from ritornello.methods.daily_dilemmas.values import load_values


@cache
def written_dilemmas() -> tuple[Dilemma, ...]:
    """48 dilemmas, six per principle and numbered in that order; in three of each six, acting
    upholds the supporting values, in the others the opposing ones."""
    table = load_values()
    dilemmas = []
    for entry in _file()["principles"]:
        for situation, act, act_values, other_values in entry["dilemmas"]:
            actions: dict[Kind, Action] = {
                "to_do": Action.of(act, act_values, table),
                "not_to_do": Action.of(refrain(act), other_values, table),
            }
            dilemmas.append(Dilemma(len(dilemmas) + 1, situation, actions, entry["topic"]))
    return tuple(dilemmas)


@cache
def written_principles() -> tuple[Principle, ...]:
    """The eight principles, with steering prompts for either side."""
    return tuple(
        Principle(
            entry["text"],
            entry["supporting"],
            entry["opposing"],
            system_prompt(entry["supporting_prompt"]),
            system_prompt(entry["opposing_prompt"]),
        )
        for entry in _file()["principles"]
    )


def refrain(act: str) -> str:
    """The other action, in words.

    >>> refrain("Tell him")
    'Do not tell him'
    """
    return f"Do not {act[0].lower()}{act[1:]}"


def _file() -> dict:
    file = resources.files("ritornello.methods.daily_dilemmas").joinpath("written.json")
    return json.loads(file.read_text(encoding="utf-8"))
