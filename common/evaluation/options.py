"""Options as they are shown, and the option that a reply means."""

import json
import re
import string
import unicodedata
from collections.abc import Sequence
from typing import Literal

from ritornello.common.chat.protocol import Part, Text
from ritornello.common.evaluation.sample import Answer, Choice, ParserConfigError

Style = Literal["A.", "(A)", "1."]
_FRAMES = {"A.": "{}. ", "(A)": "({}) ", "1.": "{}. "}
_DECODER = json.JSONDecoder()
_VLMEVALKIT_BLANKS = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
_VLMEVALKIT_REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)


def option_keys(count: int, style: Style = "A.") -> tuple[str, ...]:
    """The letters or numbers of `count` options.

    Raises:
        ValueError: more letters than the alphabet has, or an unknown style.
    """
    if style not in _FRAMES:
        raise ValueError(f"style must be one of {list(_FRAMES)}, got {style!r}")
    if style == "1.":
        return tuple(str(number) for number in range(1, count + 1))
    if not 0 <= count <= len(string.ascii_uppercase):
        raise ValueError(f"lettered options number at most 26, got {count}")
    return tuple(string.ascii_uppercase[:count])


def render_options(choices: Sequence[Choice], style: Style = "A.") -> tuple[Part, ...]:
    """One option a line, as parts of a message; text next to text is joined.

    >>> render_options([Choice.of("red"), Choice.of("blue")], "(A)")
    (Text(text='(A) red\\n(B) blue'),)
    """
    parts: list[Part] = []
    for index, (key, choice) in enumerate(
        zip(option_keys(len(choices), style), choices, strict=True)
    ):
        frame = ("\n" if index else "") + _FRAMES[style].format(key)
        for part in (Text(frame), *choice.parts):
            if isinstance(part, Text) and parts and isinstance(parts[-1], Text):
                parts[-1] = Text(parts[-1].text + part.text)
            else:
                parts.append(part)
    return tuple(parts)


class OptionParser:
    """Reads which option a reply means, by the first rule that fits; nothing is ever guessed.

    The rules, by the name that `Answer.rule` gives: `json` (the last JSON object with the field
    "answer"), `key` (the reply is a key, in brackets or with a full stop at most), `declaration`
    ("the answer is B", "Answer: B"; the last one counts), `last_line` (the last line is a key) and
    `content` (exactly one option's text occurs, whole words, without regard to case). A lone
    letter within a sentence is no key.

    Args:
        keys: what the options are called, in the order shown.
        contents: their texts, for the last rule; empty switches it off.

    Raises:
        ParserConfigError: keys are missing, equal, or not as many as the contents.
    """

    def __init__(self, keys: Sequence[str], contents: Sequence[str] = ()) -> None:
        self.keys = tuple(keys)
        distinct = len(set(map(str.casefold, self.keys))) == len(self.keys)
        if not (self.keys and distinct and all(self.keys)):
            raise ParserConfigError(f"keys must be distinct and not empty, got {list(keys)}")
        if contents and len(contents) != len(self.keys):
            raise ParserConfigError(f"{len(self.keys)} keys do not fit {len(contents)} contents")
        self._index = {key.casefold(): index for index, key in enumerate(self.keys)}
        self._contents = [_normal(content) for content in contents]
        names = "|".join(re.escape(key) for key in sorted(self.keys, key=len, reverse=True))
        self._lone = re.compile(rf"[\s*_`'\"(\[{{]*({names})[\s*_`'\")\]}}.:!]*", re.IGNORECASE)
        self._declared = re.compile(
            r"\b(?:answer|choice|option)\b\s*(?:is|would be|:|=)\s*:?\s*(?:option\s+)?"
            rf"[*_`'\"(\[{{]*({names})(?=[*_`'\")\]}}]|[.,:;!](?!\d)|\s*$|\s*\n)",
            re.IGNORECASE,
        )

    def __call__(self, text: str) -> Answer:
        """The 0-based option, or `Answer.unparsed()`."""
        for rule in (
            self._by_json,
            self._by_key,
            self._by_declaration,
            self._by_last_line,
            self._by_content,
        ):
            index = rule(text)
            if index is not None:
                return Answer(index, rule=rule.__name__.removeprefix("_by_"))
        return Answer.unparsed()

    def _by_json(self, text: str) -> int | None:
        found = last_json_field(text, "answer")
        if isinstance(found, bool | float | list | dict | None):
            return None
        return self._by_key(str(found))

    def _by_key(self, text: str) -> int | None:
        match = self._lone.fullmatch(text.strip())
        return self._index[match[1].casefold()] if match else None

    def _by_declaration(self, text: str) -> int | None:
        found = self._declared.findall(text)
        return self._index[found[-1].casefold()] if found else None

    def _by_last_line(self, text: str) -> int | None:
        lines = text.strip().splitlines()
        return self._by_key(lines[-1]) if len(lines) > 1 else None

    def _by_content(self, text: str) -> int | None:
        reply = f" {_normal(text)} "
        found = [
            i for i, content in enumerate(self._contents) if f" {content} " in reply and content
        ]
        return found[0] if len(found) == 1 else None


def last_json_field(text: str, field: str) -> object:
    """The value of a field in the last JSON object of a text that has it; None without one."""
    value, start = None, text.find("{")
    while start >= 0:
        end = start + 1
        try:
            found, end = _DECODER.raw_decode(text, start)
            if isinstance(found, dict) and found.get(field) is not None:
                value = found[field]
        except (json.JSONDecodeError, RecursionError):
            pass
        start = text.find("{", end)
    return value


def vlmevalkit_option(text: str, choices: dict[str, str]) -> str | None:
    """VLMEvalKit's inference of a letter, its faults included; "Z" means that it saw a refusal.

    A letter counts when it is the only one among the words and one of the last five of them, so an
    article "A" is option A. Otherwise "answer is" followed by any letter from A to D names it,
    even inside a word. Otherwise the only option whose text occurs anywhere, unless the reply is
    more than twice as long as all options together.

    Args:
        text: the reply.
        choices: letter → text.
    """
    if "Failed to obtain answer via API" not in text:
        if any(phrase in text for phrase in _VLMEVALKIT_REFUSALS):
            return "Z"
        words = text.translate(_VLMEVALKIT_BLANKS).split()
        named = [letter for letter in choices if letter in words]
        if len(named) == 1 and words.index(named[0]) > len(words) - 5:
            return named[0]
        if not named and "Z" in words:
            return "Z"
        declared = re.search(r"answer\s+is\s+\**([abcd])", text, re.IGNORECASE)
        if declared and declared[1].upper() in choices:
            return declared[1].upper()
    lowered = text.lower()
    if len(lowered) > 2 * sum(map(len, choices.values())):
        return None
    found = [letter for letter, content in choices.items() if content.lower() in lowered]
    return found[0] if len(found) == 1 else None


def _normal(text: str) -> str:
    """Case, width and punctuation removed; words apart by one blank."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"\w+", folded))
