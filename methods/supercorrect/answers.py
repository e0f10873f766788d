"""The rule judge: finds the final answer in a text and compares two answers (spec of sec. 4.1).

No model and no network: XML first, then the box, then a phrase, then the last number; equality of
strings, then of numbers, tuples, intervals, sets and matrices, then of expressions.
"""

import re
from functools import lru_cache
from itertools import accumulate

from ritornello.methods.supercorrect.answer_normal_form import Compat, normalize_answer
from ritornello.methods.supercorrect.expressions import expressions_equal
from ritornello.methods.supercorrect.traces import parse_trace

_PHRASES = ("he answer is", "final answer is")


def boxed_content(text: str) -> str | None:
    r"""Content of the last `\boxed{..}` (braces matched) or `\boxed x` (up to a `$`)."""
    if "boxed" not in text:
        return None
    rest = text.split("boxed")[-1]
    if not rest.startswith("{"):
        return rest.split("$")[0].strip()
    depth = 0
    for place, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:place]
    return rest[1:]


def extract_answer(text: str, compat: Compat = "default") -> str:
    """The final answer of a solution in normal form; empty when there is none.

    Args:
        text: what the model wrote.
        compat: "default" looks for an `<Answer>` element first; "qwen" equals the parser published
            with Qwen2.5-Math on its data set "math".
    """
    if compat == "default" and (answer := parse_trace(text).answer) is not None:
        inner = boxed_content(answer)
        return normalize_answer(answer if inner is None else inner)
    raw = re.sub(r"\n\s*", "", _raw_answer(text.replace("ки", "")))
    raw = raw.removeprefix(":").removesuffix(".").removesuffix("/")
    return normalize_answer(raw, compat)


def _raw_answer(text: str) -> str:
    if "final answer is $" in text and "$. I hope" in text:
        return text.split("final answer is $", 1)[1].split("$. I hope", 1)[0].strip()
    boxed = boxed_content(text)
    if boxed is not None:
        return boxed
    for phrase in _PHRASES:
        if phrase in text:
            return text.split(phrase)[-1].strip()
    if "答案是" in text:
        return text.split("答案是")[1].strip().split("\n\n")[0].strip()
    numbers = re.findall(r"-?\d*\.?\d+", text.replace(",", ""))
    return numbers[-1] if numbers else ""


def answers_equal(a: str | None, b: str | None) -> bool:
    """Whether two answers mean the same; a missing or empty one equals nothing.

    Numbers agree within a relative 1e-4 only where one of them is a decimal (a rounded figure);
    otherwise expressions must agree to 30 digits wherever they are evaluated. Answers are data:
    they are parsed by a fixed grammar and never executed.
    """
    if a is None or b is None:
        return False
    return _equal(normalize_answer(a), normalize_answer(b))


@lru_cache(maxsize=65_536)
def _equal(a: str, b: str) -> bool:
    if not a or not b:
        return False
    if a == b or a.lower() == b.lower():
        return True
    left, right = _matrix(a), _matrix(b)
    if left is not None or right is not None:
        return left is not None and right is not None and _all_equal(left, right)
    unordered = a[0] == b[0] == "{" and a[-1] == b[-1] == "}"
    first, second = _items(a), _items(b)
    if first is None and second is None:
        return expressions_equal(a, b)
    if first is None or second is None or _edges(a) != _edges(b):
        return False
    if unordered or not _edges(a):
        return _same_multiset(first, second)
    return _all_equal(first, second)


def _edges(text: str) -> str:
    """The brackets around the whole text; none around "(1,2),(3,4)"."""
    depths = list(accumulate((c in "([{") - (c in ")]}") for c in text))
    return (
        text[0] + text[-1]
        if depths[0] == 1 and 0 in depths and depths.index(0) == len(text) - 1
        else ""
    )


def _items(text: str) -> list[str] | None:
    """Members of a tuple, interval, set or bare list; None for a single expression."""
    edges = _edges(text)
    inner = text[1:-1] if edges else text
    members, depth, start = [], 0, 0
    for place, character in enumerate(inner):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return None
        if character == "," and depth == 0:
            members.append(inner[start:place])
            start = place + 1
    if not members and edges not in ("[]", "{}"):
        return None
    return [*members, inner[start:]]


def _matrix(text: str) -> list[str] | None:
    match = re.fullmatch(r"\\begin\{[pv]matrix\}(.*)\\end\{[pv]matrix\}", text)
    if match is None:
        return None
    rows = [row for row in match[1].split("\\\\") if row]
    return [cell for row in rows for cell in [*row.split("&"), ";"]]


def _all_equal(first: list[str], second: list[str]) -> bool:
    return len(first) == len(second) and all(map(_equal, first, second))


def _same_multiset(first: list[str], second: list[str]) -> bool:
    if len(first) != len(second):
        return False
    left = list(second)
    for member in first:
        found = next((place for place, other in enumerate(left) if _equal(member, other)), None)
        if found is None:
            return False
        del left[found]
    return True
