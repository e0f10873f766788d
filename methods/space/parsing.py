"""What a reply says: readers of our own, and the official ones with everything they misread."""

import json
import re
from collections.abc import Collection
from typing import Any, Literal

Agent = Literal["mct", "map", "ego", "cswm_text", "cswm_image"]

MAZE_ACTIONS = ("up", "down", "left", "right", "stop")
EGO_ACTIONS = ("move_forward", "turn_left", "turn_right", "stop")

_BRACED = re.compile(r"\{.*?\}", re.DOTALL)
# The navigation pattern wants white space on both sides within the braces, the maze's does not;
# `(.*)` takes as much of the line as it can.
_LOOSE_ACTION = re.compile(r'\{\s*"action":\s*"(.*)"\s*\}')
_SPACED_ACTION = re.compile(r'\{\s+"action":\s*"(.*)"\s+\}')
_NUMBER = re.compile(r'\{\s*"action":\s*(-?\d+)\s*\}')


def last_object(text: str, key: str) -> dict[str, Any] | None:
    """The last JSON object in the text that has `key`; nested braces and strings are no trouble."""
    decoder = json.JSONDecoder()
    found, place = None, text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
        except (json.JSONDecodeError, RecursionError):
            end = place + 1
        else:
            if isinstance(value, dict) and key in value:
                found = value
        place = text.find("{", end)
    return found


def parse_answer(text: str) -> int | None:
    """Our reading of a question's answer: a whole number under the key `answer`."""
    value = (last_object(text, "answer") or {}).get("answer")
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def parse_action(text: str, actions: Collection[str]) -> str | None:
    """Our reading of a move: one of `actions` under the key `action`, in any case."""
    value = (last_object(text, "action") or {}).get("action")
    word = value.strip().lower() if isinstance(value, str) else None
    return word if word in actions else None


def parse_box(text: str) -> int | None:
    """Our reading of a box: a whole number under the key `action`."""
    found = last_object(text, "action")
    return None if found is None else parse_answer(json.dumps({"answer": found["action"]}))


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
    except ValueError:
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
