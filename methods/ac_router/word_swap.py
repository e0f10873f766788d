"""The word-swap attack of the paper's WikiText evaluation: some content words become "AAA"."""

import re

import torch
from torch import Generator

REPLACEMENT = "AAA"

# Function words: what a swap must leave alone, or the sentence loses its structure too.
_FUNCTION_WORDS = """
    a about above after again against all am an and any are as at be because been before being
    below between both but by can could did do does doing down during each few for from further
    had has have having he her here hers herself him himself his how i if in into is it its itself
    just me might more most must my myself no nor not now of off on once only or other our ours
    ourselves out over own same shall she should so some such than that the their theirs them
    themselves then there these they this those through to too under until up upon us very was we
    were what when where which while who whom why will with would you your yours yourself
"""
STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")


def word_swap(
    text: str,
    rate: float = 0.025,
    *,
    generator: Generator,
    replacement: str = REPLACEMENT,
    stop_words: frozenset[str] = STOP_WORDS,
) -> str:
    """Replaces `rate` of the content words of every line, at least one where there is one.

    Args:
        text: any text; lines are attacked one by one.
        rate: share of the words that are no stop words, in [0, 1]; 0 changes nothing.
        generator: chooses the words.
        replacement: what they become; a word-level vocabulary maps it to its unknown token.
        stop_words: lower-case words that stay.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be in [0, 1], got {rate}")
    if rate == 0:
        return text
    lines = text.split("\n")
    return "\n".join(_swap_line(line, rate, generator, replacement, stop_words) for line in lines)


def _swap_line(
    line: str, rate: float, generator: Generator, replacement: str, stop_words: frozenset[str]
) -> str:
    words = [match for match in _WORD.finditer(line) if match.group().lower() not in stop_words]
    if not words:
        return line
    count = max(round(rate * len(words)), 1)
    chosen = torch.randperm(len(words), generator=generator)[:count].sort().values
    pieces, end = [], 0
    for number in chosen.tolist():
        begin, stop = words[number].span()
        pieces += [line[end:begin], replacement]
        end = stop
    return "".join(pieces) + line[end:]
