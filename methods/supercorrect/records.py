"""The rows that the stages hand to each other, and the log that lets a broken run go on."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ritornello.common.chat import Journal

State = Literal["TEACHER", "PARSED", "UNPARSABLE", "INSPECTED", "REVISE", "ACCEPTED", "REJECTED"]
FINAL_STATES = ("UNPARSABLE", "ACCEPTED", "REJECTED")


@dataclass(frozen=True)
class MathProblem:
    """A problem with its reference solution; MATH grades its problems' difficulty from 1 to 5.

    Raises:
        ValueError: no answer, without which no solution can be judged.
    """

    id: str
    problem: str
    answer: str
    solution: str
    source: str = ""
    level: int | None = None

    def __post_init__(self) -> None:
        if not self.answer.strip():
            raise ValueError(f"answer of problem {self.id!r} must not be empty")


@dataclass(frozen=True)
class ErrorCase:
    """A wrong solution of a student (sec. 3.2).

    Args:
        id: the problem's id.
        problem: its text.
        answer: right final answer.
        solution: reference solution.
        student_steps: the student's steps.
        student_answer: its wrong final answer.
        first_error: 1-based first wrong step, once known.
        teacher_trace: the teacher's correction as written.
        student_trace: the student's own.
    """

    id: str
    problem: str
    answer: str
    solution: str
    student_steps: tuple[str, ...]
    student_answer: str | None
    first_error: int | None = None
    teacher_trace: str | None = None
    student_trace: str | None = None

    def with_error(self, place: int, teacher_trace: str | None = None) -> "ErrorCase":
        """The case with its first error.

        Raises:
            ValueError: `place` outside 1..number of steps.
        """
        if not 1 <= place <= len(self.student_steps):
            raise ValueError(
                f"first_error must be in 1..{len(self.student_steps)} for case {self.id!r}, "
                f"got {place}"
            )
        return replace(self, first_error=place, teacher_trace=teacher_trace)


@dataclass(frozen=True)
class DataSet:
    """Rows ready for training, and what became of the items that gave none.

    Reads like a `datasets.Dataset`: `data[0]` is a row, `data["prompt"]` a column.

    Args:
        rows: plain dictionaries, in the order of the input.
        dropped: reason -> count.
        statistics: figures worth reporting, of correction pairs the lengths of both sides.
        cases: of correction pairs, the error cases behind the rows, with both traces.
    """

    rows: list[dict[str, Any]]
    dropped: Counter[str] = field(default_factory=Counter)
    statistics: dict[str, float] = field(default_factory=dict)
    cases: list[ErrorCase] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, which: int | str) -> Any:
        return [row[which] for row in self.rows] if isinstance(which, str) else self.rows[which]


class ReviewLog:
    """Every transition of every item of one stage, with the raw text.

    Args:
        stage: whose items they are.
        journal: where the transitions of all stages go; None keeps nothing.
    """

    def __init__(self, stage: str, journal: Journal | None) -> None:
        self._stage = stage
        self._journal = journal

    def write(self, item: str, state: State, rounds: int, text: str) -> None:
        """Appends one transition of one item."""
        if self._journal is not None:
            row = {"stage": self._stage, "id": item, "state": state, "round": rounds, "text": text}
            self._journal.append(row)

    def finished(self) -> dict[str, tuple[State, int, str]]:
        """Items that a former run brought to a final state: (state, rounds, text)."""
        rows = () if self._journal is None else self._journal.records()
        return {
            row["id"]: (row["state"], row["round"], row["text"])
            for row in rows
            if row["stage"] == self._stage and row["state"] in FINAL_STATES
        }
