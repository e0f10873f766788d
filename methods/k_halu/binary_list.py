"""Reading a list of zeros and ones from a reply."""

import re
import unicodedata
from collections.abc import Sequence

_RUN = re.compile(r"\d+(?:(?:\s*,\s*|[ \t]+)\d+)*")
_DECLARED = re.compile(r"(?:answer|정답)[^\d]{0,20}$", re.IGNORECASE)
_OFFICIAL_BRACKETED = re.compile(r"\[\s*(?P<list>\d+(?:,\s*\d+)*)\s*\]")
_OFFICIAL_BARE = re.compile(r"(?P<list>\d+(?:,\s*\d+)*)")
_END_MARK = re.compile(r"</s>+")


def parse_binary_list(text: str, n: int = 5, compat: bool = False) -> tuple[int, ...] | None:
    """The list that a reply holds, or None.

    Ours: every run of exactly n zeros and ones, apart by commas or blanks, in any brackets or
    none, or written together; if the reply holds different ones, the last that follows "answer" or
    "정답", and without such a word nothing is read.

    Official (`compat`): on the first line of the stripped reply the first bracketed list of
    integers, else a list at the very start once `</s>` is gone. No blank may stand before a comma,
    the list may have any length and hold any integers (full-width digits too), and a later line is
    never seen.
    """
    if compat:
        return _official(text)
    reply = unicodedata.normalize("NFKC", text)
    found = [(run.start(), _marks(run[0], n)) for run in _RUN.finditer(reply)]
    lists = [(start, marks) for start, marks in found if marks is not None]
    if not lists:
        return None
    if len({marks for _, marks in lists}) == 1:
        return lists[0][1]
    declared = [marks for start, marks in lists if _DECLARED.search(reply[:start])]
    return declared[-1] if declared else None


def binary(indices: Sequence[int], n: int = 5) -> tuple[int, ...]:
    """0-based indices as a list of n zeros and ones."""
    return tuple(int(index in indices) for index in range(n))


def _marks(run: str, n: int) -> tuple[int, ...] | None:
    """A run of integers as n zeros and ones, if that is what it is."""
    numbers = re.findall(r"\d+", run)
    digits = list(numbers[0]) if len(numbers) == 1 else numbers
    return tuple(map(int, digits)) if len(digits) == n and set(digits) <= {"0", "1"} else None


def _official(text: str) -> tuple[int, ...] | None:
    line = text.strip().split("\n")[0]
    match = _OFFICIAL_BRACKETED.search(line)
    if match is None:
        match = _OFFICIAL_BARE.match(_END_MARK.sub("", line).strip())
    try:
        return tuple(map(int, match["list"].split(","))) if match else None
    except ValueError:  # a model that repeats one digit for thousands of places
        return None
