"""From what a model ran on with to one instruction (official `exp/str_utils.py`).

Llama-3 and Gemma-2 often continue an instruction with its own answer, a heading or a list. The
sanitiser strips a leading label and cuts at the first sign that the answer begins. The class says
which rule fired.
"""

import re
from typing import Literal

Family = Literal["llama-3", "gemma-2"]
Compat = Literal["fixed", "official"]
DropReason = Literal["empty", "length-truncated", "heading only", "non-text"]

_LABELS = (
    "Task",
    "Prompt",
    "Original Prompt",
    "Question",
    "The Problem",
    "Problem",
    "Scenario",
    "The senario",  # the official list has this spelling
    "Situation",
    "The situation",
    "Context",
    "Challenge",
    "Query",
    "Request",
    "Instructions",
    "Instruction",
    "Descriptions",
    "Description",
)
_ENUMERATION = re.compile(r"^(?:\d+\.|\w+\))\s*")
_LABEL = re.compile(
    r"^(?:{words}|Question \d+[:.]|Part \d+:|Q\d+[.:])\s*".format(
        words="|".join(
            form.format(re.escape(label))
            for label in _LABELS
            for form in (r"{}:", r"\*\*{}\*\*", r"\#\#\ {}:")
        )
    ),
    re.IGNORECASE,
)
_ANSWER_MARKERS = (
    "Answer:",
    "Answers:",
    "The answer is",
    "Correct answer",
    "The correct answer",
    "Answer is",
    "Explanation:",
    "Here are some",
    "Solution Approach:",
    "Solution:",
)
_MARKERS = "|".join(map(re.escape, _ANSWER_MARKERS))
# The official expression wants one more colon after each marker, so that "Answer:" never matches.
_ANSWER = {
    "official": re.compile(rf"(?:{_MARKERS})s?:"),
    "fixed": re.compile(rf"(?:{_MARKERS})"),
}
_HEADING = re.compile(r"#{1,6} [^?]*|\*\*[^*?]+\*\*:?")
_STEP = re.compile(r"#{1,3} Step 1")


def sanitize_instruction(
    text: str, family: Family | None = None, compat: Compat = "fixed"
) -> tuple[str, float]:
    """Cuts a sampled continuation down to the instruction.

    Args:
        text: what the model wrote after the pre-query template.
        family: whose habits are assumed; None leaves the text as it is (class 0).
        compat: "official" keeps the published code's three defects: answer markers need a second
            colon, `**` is removed only where it begins at index 1, `<b>` tags stay. "fixed" (the
            default) also never cuts an instruction down to nothing.

    Returns:
        The instruction and the number of the rule that applied: 1 emphasised question, 2.x quoted,
        3 bold, 4 answer marker, then for Llama-3 5 step heading, 6.x first line ends with a
        colon, 99.x otherwise; for Gemma-2 the last two groups are 5.x and 6.x.

    Raises:
        ValueError: unknown family or compat.
    """
    if family not in (None, "llama-3", "gemma-2"):
        raise ValueError(f"family must be 'llama-3', 'gemma-2' or None, got {family!r}")
    if compat not in _ANSWER:
        raise ValueError(f"compat must be 'fixed' or 'official', got {compat!r}")
    if family is None:
        return text, 0
    before = remove_prefix(text)
    if before.startswith("*") and "?" in before:
        return remove_prefix(_question(before, "*")), 1
    body = remove_prefix(before)
    # officially the cut is sought before the second prefix was removed, and applied after
    sought = before if compat == "official" else body
    cut, number = _cut(body, sought, family, compat)
    return remove_prefix(cut), number


def remove_prefix(text: str) -> str:
    """Strips one leading enumeration ("3.", "b)"), then one leading label ("Task:", "Q2.")."""
    bare = _ENUMERATION.sub("", text).strip()
    label = _LABEL.match(bare)
    return bare[label.end() :].strip() if label else bare


def drop_reason(text: str, finish_reason: str) -> DropReason | None:
    """Why a sanitised query is not used; None if it is."""
    if not text or finish_reason == "error":
        return "empty"
    if finish_reason == "length":
        return "length-truncated"
    if _HEADING.fullmatch(text):
        return "heading only"
    if not re.search(r"\w{2}", text):
        return "non-text"
    return None


def multiple_choice_end(text: str) -> int | None:
    """Where the last option marker of a multiple-choice question ends; None below four markers."""
    markers = list(re.finditer(r"\([A-D]\)|[A-D][.)]", text, re.IGNORECASE))
    return markers[-1].end() if len(markers) >= 4 else None


def _cut(body: str, sought: str, family: Family, compat: Compat) -> tuple[str, float]:
    """The branches after the first, in order; the first that applies wins."""
    if body.startswith('"'):
        if "?" in body:
            return _question(body, '"'), 2.1
        return _first_line(body).replace('"', "").replace("*", "").strip(), 2.2
    if body.startswith("<b>"):
        bold = body.replace("*", "").strip()
        if compat == "fixed":
            bold = _first_line(re.sub(r"</?b>", "", bold).strip())
        return bold, 3
    if (answer := _ANSWER[compat].search(sought)) and _may_cut(body[: answer.start()], compat):
        return _unbold(body[: answer.start()].strip(), compat), 4
    if family == "llama-3":
        if (step := _STEP.search(sought)) and _may_cut(body[: step.start()], compat):
            return _unbold(body[: step.start()].strip(), compat), 5
        colon, plain = 6, 99
    else:
        colon, plain = 5, 6
    if _first_line(body).endswith(":"):
        return _cut_after_colon(body, colon, compat)
    if "?" in body:
        return _unbold(_question(body), compat), plain + 0.1
    return _first_line(body).replace("*", "").strip(), plain + 0.2


def _cut_after_colon(body: str, number: int, compat: Compat) -> tuple[str, float]:
    """The first line announces something: keep it up to a heading or a question mark."""
    if "#" in body and _may_cut(body.split("#")[0], compat):
        return _unbold(body.split("#")[0].strip(), compat), number + 0.1
    if "?" in body:
        return _unbold(_question(body), compat), number + 0.2
    return _first_line(body).replace("*", "").strip(), number + 0.3


def _may_cut(kept: str, compat: Compat) -> bool:
    return compat == "official" or bool(re.search(r"\w", kept))


def _question(text: str, unwanted: str = "") -> str:
    """The text up to and with its first question mark."""
    question = text.split("?")[0]
    return (question.replace(unwanted, "") if unwanted else question).strip() + "?"


def _first_line(text: str) -> str:
    return text.split("\n")[0].strip()


def _unbold(text: str, compat: Compat) -> str:
    if compat == "official" and text.find("**") != 1:
        return text
    return text.replace("**", "").strip()
