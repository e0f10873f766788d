"""What a reply says: readers of our own, and the official ones with everything they misread."""

import json
import re
from collections.abc import Collection
from typing import Any, Literal

from ritornello.common.evaluation.options import last_json_field

Agent = Literal["mct", "map", "ego", "cswm_text", "cswm_image"]

MAZE_ACTIONS = ("up", "down", "left", "right", "stop")
EGO_ACTIONS = ("move_forward", "turn_left", "turn_right", "stop")

_BRACED = re.compile(r"\{.*?\}", re.DOTALL)
# The navigation pattern wants white space on both sides within the braces, the maze's does not;
# `(.*)` takes as much of the line as it can.
_LOOSE_ACTION = re.compile(r'\{\s*"action":\s*"(.*)"\s*\}')
_SPACED_ACTION = re.compile(r'\{\s+"action":\s*"(.*)"\s+\}')
_NUMBER = re.compile(r'\{\s*"action":\s*(-?\d+)\s*\}')


def parse_answer(text: str) -> int | None:
    """Our reading of a question's answer: a whole number under the key `answer`."""
    return _whole(_field(text, "answer"))


def parse_action(text: str, actions: Collection[str]) -> str | None:
    """Our reading of a move: one of `actions` under the key `action`, in any case."""
    value = _field(text, "action")
    word = value.strip().lower() if isinstance(value, str) else None
    return word if word in actions else None


def parse_box(text: str) -> int | None:
    """Our reading of a box: a whole number under the key `action`."""
    return _whole(_field(text, "action"))


def _field(text: str, key: str) -> object:
    """A key's value in the last JSON object that has it.

    Where there is none, a reply that was cut within an object still counts if the value itself is
    whole: `{"action": "up", "reason": "the way`.
    """
    value = last_json_field(text, key)
    if value is None:
        cut = re.findall(rf'(?<!\\)"{key}"\s*:\s*("[^"\\\n]*"|-?\d+(?=\s*,))', text)
        value = json.loads(cut[-1]) if cut else None
    return value


def _whole(value: object) -> int | None:
    """A whole number, also as text or as 2.0; True is none."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def official_answer(text: str) -> Any:
    """The official reading of a question's answer.

    The last shortest match of braces is decoded; the key `answer`, or the value of a lone key;
    whatever `int()` takes becomes a number: 2.7 is 2 and true is 1. Nested braces, and braces in
    strings, are not understood.
    """
    matches = _BRACED.findall(text)
    if not matches:
        return None
    try:
        value = json.loads(matches[-1])
    except (ValueError, RecursionError):
        return None
    if "answer" in value:
        value = value["answer"]
    elif len(value) == 1:
        (value,) = value.values()
    else:
        return None
    if value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return value


def official_action(text: str, agent: Agent) -> str | int | None:
    """The official reading of an action, its fallbacks included.

    Args:
        text: the reply.
        agent: `mct` and `map` read unknown words as "up", `ego` passes them on; `cswm_text` reads
            1, and `cswm_image` 0, where there is no number.

    Returns:
        None where navigation finds no match; the agents then do "up" and "turn_left".
    """
    if agent in ("cswm_text", "cswm_image"):
        number = _NUMBER.search(text)
        return int(number[1]) if number else int(agent == "cswm_text")
    match = (_LOOSE_ACTION if agent == "mct" else _SPACED_ACTION).search(text)
    if agent == "ego":
        return match[1] if match else None
    if match is None:
        return "up" if agent == "mct" else None
    return match[1] if match[1] in MAZE_ACTIONS else "up"


def official_falls_back(text: str, agent: Agent) -> bool:
    """Whether the published loop would do something that the reply does not name."""
    if agent in ("cswm_text", "cswm_image"):
        return _NUMBER.search(text) is None
    match = (_LOOSE_ACTION if agent == "mct" else _SPACED_ACTION).search(text)
    return match is None or match[1] not in (EGO_ACTIONS if agent == "ego" else MAZE_ACTIONS)
