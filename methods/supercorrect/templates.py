"""What is asked of student, teacher and inspector, and how their answers are read (sec. 3.1-3.3).

A *solution template* asks for a hierarchical solution; a *correction template* asks where a
solution goes wrong and lays teacher's and student's answers out as a preference pair. Both are
protocols: the pipeline works with any wording, also with one of single-token words.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from ritornello.common.chat import Message, Prompt
from ritornello.common.chat.protocol import Role
from ritornello.methods.supercorrect.traces import (
    Step,
    Trace,
    parse_trace,
    render_step,
    render_trace,
    steps_trace,
)

TextPrompt = str | list[dict[str, str]]
"""Raw text, or chat messages as trl takes them: a last assistant message is to be continued."""

SOLVE = (
    "Solve the math problem below in numbered steps, each between <StepN> and </StepN> with N = 1, "
    "2, 3, ... Where a step is easy to get wrong, add between <Key> and </Key> inside it what to "
    "watch for and why. After the last step, say between <Generalized> and </Generalized> how "
    "problems of this kind are solved in general. End with the final result alone between <Answer> "
    "and </Answer>.\n"
)
REWRITE = (
    "Rewrite the reference solution of the math problem below for a student. Keep its reasoning "
    "and its result; number the steps, each between <StepN> and </StepN>. In the hard steps add "
    "between <Key> and </Key> a detailed explanation. Then say between <Generalized> and "
    "</Generalized> how similar problems are solved. End with the final result between <Answer> "
    "and </Answer>.\n"
)
CORRECT = (
    "Check a student's solution of a math problem step by step. Repeat the steps between <StepN> "
    "and </StepN>. In each wrong step, after its text, say between <Cause> and </Cause> why it is "
    "wrong and between <Correction> and </Correction> how it should be. End with the right final "
    "result between <Answer> and </Answer>.\n"
)


@dataclass(frozen=True)
class Correction:
    """A claim about a solution: the first wrong step, why, and how it should be.

    Args:
        step: 1-based; None claims that every step is right.
        cause: why it is wrong.
        text: the step as it should be.
        answer: final answer stated with the claim.
    """

    step: int | None
    cause: str = ""
    text: str = ""
    answer: str | None = None


class SolutionTemplate(Protocol):
    """Asks for a solution and reads it; `generalized` says whether it asks for a generalisation."""

    generalized: bool

    def prompt(self, problem: str, steps: Sequence[str] = ()) -> TextPrompt:
        """The question; with `steps`, to be continued after them."""
        ...

    def parse(self, text: str) -> Trace:
        """Reads a model's text."""
        ...

    def render(self, trace: Trace) -> str:
        """The canonical text of a solution."""
        ...


class CorrectionFormat(Protocol):
    """Asks for the first error and reads the claim."""

    def prompt(self, problem: str, steps: Sequence[str], solution: str | None = None) -> TextPrompt:
        """The question about the steps; `solution` is the reference, for a teacher."""
        ...

    def parse(self, text: str) -> Correction | None:
        """None when nothing can be read."""
        ...

    def pair(
        self, problem: str, steps: Sequence[str], teacher: Correction, student: Correction | None
    ) -> tuple[TextPrompt, str, str]:
        """Prompt, chosen and rejected completion for stage 2."""
        ...


class HierarchicalTemplate:
    """The student's solution template.

    Args:
        prompt: precedes the problem, whose slot `{input}` at the end may be written out or not;
            ours by default. `from_file` reads another one.
        generalized: ask for a generalisation (off: the ablation of Table 8).
    """

    def __init__(self, prompt: str = SOLVE, *, generalized: bool = True) -> None:
        before = prompt.removesuffix("{input}")
        self.instruction = before if generalized else _without_generalisation(before)
        self.generalized = generalized

    @classmethod
    def from_file(cls, path: Path | str, *, sha256: str | None = None) -> "HierarchicalTemplate":
        """Reads an instruction with an `{input}` slot at its end.

        Args:
            path: UTF-8 text.
            sha256: refuse any other text.

        Raises:
            ValueError: the slot is missing, or the hash differs.
        """
        text = Path(path).read_text(encoding="utf-8")
        found = hashlib.sha256(text.encode()).hexdigest()
        if sha256 is not None and found != sha256:
            raise ValueError(f"sha256 of {path} must be {sha256}, got {found}")
        if not text.endswith("{input}"):
            raise ValueError(f"{path} must end with the slot {{input}}, got ...{text[-20:]!r}")
        return cls(text)

    def prompt(self, problem: str, steps: Sequence[str] = ()) -> list[dict[str, str]]:
        """One user message; with `steps`, also the beginning of the answer."""
        messages = [{"role": "user", "content": self.instruction + problem}]
        if steps:
            begun = render_trace(steps_trace(steps)) + "\n"
            messages.append({"role": "assistant", "content": begun})
        return messages

    def parse(self, text: str) -> Trace:
        """See `parse_trace`."""
        return parse_trace(text)

    def render(self, trace: Trace) -> str:
        """See `render_trace`."""
        return render_trace(trace)


def _without_generalisation(instruction: str) -> str:
    sentences = instruction.split(". ")
    return ". ".join(s for s in sentences if "<Generalized>" not in s)


class CorrectionTemplate:
    """Where does a solution go wrong (sec. 3.2)?

    Args:
        grounded: the teacher's variant, which shows the reference solution. The student's does
            not: it must not learn from an answer that it will not see.
        include_wrong_step: the pair's prompt re-states the wrong step before the cause, as Fig. 2
            does; without it the prompt ends after step k - 1, as eq. 8 reads.
    """

    def __init__(self, grounded: bool = False, *, include_wrong_step: bool = True) -> None:
        self.grounded = grounded
        self.include_wrong_step = include_wrong_step

    def prompt(
        self, problem: str, steps: Sequence[str], solution: str | None = None
    ) -> list[dict[str, str]]:
        """The question about a solution.

        Raises:
            ValueError: a grounded template without the reference solution, or the other way round.
        """
        if self.grounded != (solution is not None):
            raise ValueError(
                f"solution must be {'given' if self.grounded else 'None'} for a template with "
                f"grounded={self.grounded}, got {solution!r}"
            )
        parts = [f"{CORRECT}\nProblem:\n{problem}"]
        if solution is not None:
            parts.append(f"Reference solution:\n{solution}")
        parts.append(f"Student's solution:\n{render_trace(steps_trace(steps))}")
        return [{"role": "user", "content": "\n\n".join(parts)}]

    def parse(self, text: str) -> Correction | None:
        """The claim of a correction trace; None where there is no step."""
        trace = parse_trace(text)
        if not trace.steps:
            return None
        place = trace.first_error
        if place is None:
            return Correction(None, answer=trace.answer)
        wrong = trace.steps[place - 1]
        return Correction(place, wrong.cause or "", wrong.correction or "", trace.answer)

    def pair(
        self, problem: str, steps: Sequence[str], teacher: Correction, student: Correction | None
    ) -> tuple[list[dict[str, str]], str, str]:
        """Eq. 8: the same correct prefix, then the teacher's or the student's view of step k.

        A student that finds the error only later, at k', is represented by its own continuation up
        to k'; one that claims an earlier error or none, by leaving step k without a cause.
        """
        k = teacher.step
        if k is None or not 1 <= k <= len(steps):
            raise ValueError(f"teacher.step must be in 1..{len(steps)}, got {k}")
        prefix = [render_step(place, Step(text)) for place, text in enumerate(steps[: k - 1], 1)]
        if self.include_wrong_step:
            prefix.append(render_step(k, Step(steps[k - 1]), close=False))
        chosen = _notes(teacher) + (f"</Step{k}>" if self.include_wrong_step else "")
        messages = self.prompt(problem, steps)
        if prefix:
            messages.append({"role": "assistant", "content": "\n".join(prefix)})
        return messages, chosen, self._rejected(steps, k, student)

    def _rejected(self, steps: Sequence[str], k: int, student: Correction | None) -> str:
        if student is None or student.step is None or student.step < k:
            return f"</Step{k}>" if self.include_wrong_step else "This step is correct."
        if not self.include_wrong_step:
            return _notes(student)
        if student.step == k:
            return f"{_notes(student)}</Step{k}>"
        later = steps[k : student.step]
        lines = [render_step(place, Step(text)) for place, text in enumerate(later, k + 1)]
        closing = f"</Step{student.step}>"
        return "\n".join([f"</Step{k}>", *lines]).removesuffix(closing) + _notes(student) + closing


def _notes(correction: Correction) -> str:
    return f"<Cause>{correction.cause}</Cause><Correction>{correction.text}</Correction>"


def as_client_prompt(prompt: TextPrompt) -> Prompt:
    """The prompt for a chat client; a last assistant message becomes the answer's beginning."""
    if isinstance(prompt, str):
        return Prompt(text=prompt)
    prefill = prompt[-1]["content"] if prompt[-1]["role"] == "assistant" else ""
    messages = prompt[:-1] if prefill else prompt
    return Prompt(
        tuple(Message(cast(Role, m["role"]), m["content"]) for m in messages), prefill=prefill
    )
