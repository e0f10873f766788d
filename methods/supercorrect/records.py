"""The rows that the stages hand to each other, and the journal that lets a broken run go on."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

State = Literal["TEACHER", "PARSED", "UNPARSABLE", "INSPECTED", "REVISE", "ACCEPTED", "REJECTED"]
FINAL_STATES = ("UNPARSABLE", "ACCEPTED", "REJECTED")


@dataclass(frozen=True)
class MathProblem:
    """A problem with its reference solution.

    Raises:
        ValueError: no answer, without which no solution can be judged.
    """

    id: str
    problem: str
    answer: str
    solution: str
    source: str = ""

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


class Journal:
    """Append-only JSON lines: every transition of every item, with the raw text.

    Args:
        path: the file; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            _end_last_line(path)

    def write(self, stage: str, item: str, state: State, round_: int, text: str) -> None:
        """Appends one transition of one item, with the raw text."""
        if self.path is None:
            return
        row = {"stage": stage, "id": item, "state": state, "round": round_, "text": text}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def finished(self, stage: str) -> dict[str, tuple[State, int, str]]:
        """Items of a stage in a final state: (state, rounds, text)."""
        return {
            row["id"]: (row["state"], row["round"], row["text"])
            for row in self._rows()
            if row["stage"] == stage and row["state"] in FINAL_STATES
        }

    def _rows(self) -> Iterator[dict[str, Any]]:
        if self.path is None or not self.path.exists():
            return
        with self.path.open(encoding="utf-8") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except json.JSONDecodeError:
                    continue  # the line a killed run was writing


def _end_last_line(path: Path) -> None:
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
