"""A stimulus with its four options, before it becomes a sample."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np

Difficulty = Literal["easy", "medium", "hard"]
Presentation = Literal["text", "image"]
Piece = str | np.ndarray
Value = TypeVar("Value")

DIFFICULTIES: tuple[Difficulty, ...] = ("easy", "medium", "hard")


@dataclass(frozen=True)
class Item:
    """What a generator makes.

    Attributes:
        stimulus: texts and pictures ((height, width, 3), uint8), the question last.
        options: four, the right one first.
        facts: what the answer follows from, for solvers.
    """

    stimulus: tuple[Piece, ...]
    options: tuple[Piece, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def distinct(self) -> bool:
        """Whether no two options are the same."""
        keys = {o if isinstance(o, str) else o.tobytes() for o in self.options}
        return len(keys) == len(self.options) == 4


def pick(rng: np.random.Generator, values: Sequence[Value]) -> Value:
    """One of some values, uniformly."""
    return values[int(rng.integers(len(values)))]


def commas(rows: Iterable[Iterable[object]]) -> str:
    """Rows of symbols as text: cells joined by commas, one row a line."""
    return "\n".join(",".join(map(str, row)) for row in rows)
