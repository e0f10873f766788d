"""What is asked, in our own words; a user's copy of the published wording can take its place."""

from collections.abc import Sequence
from pathlib import Path

from ritornello.common.chat import Image, Text
from ritornello.common.errors import UserError

QUESTION_END = (
    "Exactly one option is right. Think first if you like, then end with a JSON object that holds "
    'its number, for example {"answer": 1}.'
)

PROMPTS: dict[str, str] = {
    "direction": "You walk through a world on a grid and see the cells around you, yourself in "
    "the middle (*). 0 is an obstacle, 1 is free, letters are landmarks. These are your views, in "
    "order:",
    "jlo": "Judge the directions of two segments.",
    "mpfb": "These pieces are cut from one outline (1 is inside, 0 is outside):",
    "mrt": "Compare shapes under rotation.",
    "ptt": "Imagine yourself in a place among objects.",
    "sadd": "Two grids are added (B blue, R red, W white, 0 empty):",
    "satt": "Search the board for one symbol.",
    "cbtt": "Blocks on a board are tapped one by one. 0 is empty, 1 is a block, 2 is the block "
    "being tapped; the last frame numbers the blocks. The frames, in order:",
    "wlt": "Look at the water in a bottle.",
    "mct": "You are in a maze. Walk from A to G, then stop. Actions: up, down, left, right, stop. "
    'Answer every turn with a JSON object such as {"action": "up"}.',
    "route_retracing": "You see the cells around you on a map, yourself in the middle (*). 0 is "
    "an obstacle, 1 is free, letters are landmarks. You are shown a walk along a shortest path. "
    "Then repeat it from its start and stop at the goal. Actions: up, down, left, right, stop. "
    'Answer every turn with a JSON object such as {"action": "up"}.',
    "shortcut": "You see the cells around you on a map, yourself in the middle (*). 0 is an "
    "obstacle, 1 is free, letters are landmarks. You are shown a walk that takes detours. Then go "
    "from its start to the goal on the shortest path you can find, and stop there. Actions: up, "
    'down, left, right, stop. Answer every turn with a JSON object such as {"action": "up"}.',
    "cswm": "Boxes hold one treasure after another, each box once. Open the box in which you "
    "expect the present treasure. Boxes stay where they are, but their numbers are drawn anew "
    "after every turn. 0 is empty, T is the box whose treasure you just found. Answer every turn "
    'with a JSON object that holds a box number, such as {"action": 1}.',
}
PROMPTS |= dict.fromkeys(("distance", "map_sketching"), PROMPTS["direction"])

WALK_SHOWN = "These are the views of the walk, in order:"
WALK_NOTED = "What do you note about it?"
WALK_ANSWER = "I have seen the walk."
NEXT_ACTION = "Which action do you take?"
BOX_NUMBERS_FROM_ZERO = " Box numbers begin at 0 and are printed on the boxes."


def check_prompts_dir(directory: str | Path | None) -> None:
    """Raises UserError for a folder of instructions that is not there."""
    if directory is not None and not Path(directory).expanduser().is_dir():
        raise UserError(f"prompts_dir must be a folder of text files, got {directory}")


def load_prompt(name: str, presentation: str, directory: str | Path | None = None) -> str:
    """The instruction of a task.

    Args:
        name, presentation: of the task.
        directory: a folder with files `<name>_<presentation>.txt` or `<name>.txt` that replace
            our wording; tasks without a file keep it.

    Raises:
        UserError: there is no such folder.
    """
    check_prompts_dir(directory)
    if directory is None:
        return PROMPTS[name]
    folder = Path(directory).expanduser()
    for file in (folder / f"{name}_{presentation}.txt", folder / f"{name}.txt"):
        if file.is_file():
            return file.read_text(encoding="utf-8").strip()
    return PROMPTS[name]


def joined(parts: Sequence[Text | Image]) -> list[Text | Image]:
    """Neighbouring texts as one."""
    merged: list[Text | Image] = []
    for part in parts:
        if isinstance(part, Text) and merged and isinstance(merged[-1], Text):
            merged[-1] = Text(merged[-1].text + part.text)
        else:
            merged.append(part)
    return merged
