"""Who writes and who checks the thoughts: a model behind a chat client, or an exact oracle."""

from collections.abc import Sequence
from typing import Protocol

from ritornello.common.chat import ChatClient, GenerationParams, Message
from ritornello.methods.supercorrect.records import ErrorCase, MathProblem
from ritornello.methods.supercorrect.templates import (
    REWRITE,
    Correction,
    CorrectionFormat,
    CorrectionTemplate,
    TextPrompt,
    as_client_prompt,
)
from ritornello.methods.supercorrect.traces import render_trace, steps_trace

INSPECT = (
    "Check the text below against the problem and its reference solution. If every statement in it "
    "is right, answer with the single word OK. Otherwise list the faulty parts and what is wrong.\n"
)


class TeacherClient(Protocol):
    """Writes hierarchical solutions and grounded corrections, many at a time.

    `feedback[i]` holds the objections to all earlier attempts at item i (of the parser and of the
    inspector), None at first.
    """

    name: str

    def solutions(
        self, problems: Sequence[MathProblem], feedback: Sequence[str | None]
    ) -> list[str]:
        """Hierarchical rewritings of the problems' reference solutions, as raw text."""
        ...

    def corrections(self, cases: Sequence[ErrorCase], feedback: Sequence[str | None]) -> list[str]:
        """Grounded corrections of the wrong solutions, as raw text."""
        ...


class Inspector(Protocol):
    """Objects to faulty texts: one string per item, None where nothing is wrong."""

    def solution_faults(
        self, problems: Sequence[MathProblem], texts: Sequence[str]
    ) -> list[str | None]:
        """What is wrong with hierarchical solutions (texts)."""
        ...

    def correction_faults(
        self, cases: Sequence[ErrorCase], corrections: Sequence[Correction]
    ) -> list[str | None]:
        """What is wrong with corrections of the cases."""
        ...


class LLMTeacher:
    """A teacher behind any chat client.

    Args:
        client: local model or endpoint.
        params: how it decodes.
        correction: the grounded correction template.
    """

    def __init__(
        self,
        client: ChatClient,
        params: GenerationParams | None = None,
        correction: CorrectionFormat | None = None,
    ) -> None:
        self.client = client
        self.name = client.model_id
        self.params = params or GenerationParams(max_tokens=2048)
        self.correction = correction or CorrectionTemplate(grounded=True)

    def solutions(
        self, problems: Sequence[MathProblem], feedback: Sequence[str | None]
    ) -> list[str]:
        """See `TeacherClient`."""
        prompts = [
            f"{REWRITE}\nProblem:\n{problem.problem}\n\nReference solution:\n{problem.solution}"
            for problem in problems
        ]
        return self._ask([[{"role": "user", "content": text}] for text in prompts], feedback)

    def corrections(self, cases: Sequence[ErrorCase], feedback: Sequence[str | None]) -> list[str]:
        """See `TeacherClient`."""
        prompts = [
            self.correction.prompt(case.problem, case.student_steps, case.solution)
            for case in cases
        ]
        return self._ask(prompts, feedback)

    def _ask(self, prompts: Sequence[TextPrompt], feedback: Sequence[str | None]) -> list[str]:
        asked = [
            as_client_prompt(prompt if note is None else _with_objections(prompt, note))
            for prompt, note in zip(prompts, feedback, strict=True)
        ]
        return [answer.text for answer in self.client.generate(asked, self.params)]


def _with_objections(prompt: TextPrompt, note: str) -> TextPrompt:
    addition = f"\n\nYour earlier attempts were objected to:\n{note}"
    if isinstance(prompt, str):
        return prompt + addition
    *before, last = prompt
    return [*before, last | {"content": last["content"] + addition}]


class LLMInspector:
    """The inspector model of sec. 3.2: an answer that begins with OK accepts."""

    def __init__(self, client: ChatClient, params: GenerationParams | None = None) -> None:
        self.client = client
        self.params = params or GenerationParams(max_tokens=512)

    def solution_faults(
        self, problems: Sequence[MathProblem], texts: Sequence[str]
    ) -> list[str | None]:
        """See `Inspector`."""
        return self._ask(
            [
                _inspection(problem.problem, problem.solution, text)
                for problem, text in zip(problems, texts, strict=True)
            ]
        )

    def correction_faults(
        self, cases: Sequence[ErrorCase], corrections: Sequence[Correction]
    ) -> list[str | None]:
        """See `Inspector`."""
        return self._ask(
            [
                _inspection(
                    case.problem,
                    case.solution,
                    f"{render_trace(steps_trace(case.student_steps))}\n\nFirst wrong step: "
                    f"{claim.step}\nCause: {claim.cause}\nCorrection: {claim.text}",
                )
                for case, claim in zip(cases, corrections, strict=True)
            ]
        )

    def _ask(self, prompts: list[list[Message]]) -> list[str | None]:
        answers = self.client.generate(prompts, self.params)
        texts = [answer.text.strip() for answer in answers]
        return [None if text.upper().startswith("OK") else text for text in texts]


def _inspection(problem: str, solution: str, text: str) -> list[Message]:
    return [
        Message.user(
            f"{INSPECT}\nProblem:\n{problem}\n\nReference solution:\n{solution}\n\nText:\n{text}"
        )
    ]


class Solver(Protocol):
    """Exact knowledge of a generated world."""

    def solution(self, problem: str) -> str:
        """A right hierarchical solution, as text of the world's template."""
        ...

    def correction(self, problem: str, steps: Sequence[str]) -> Correction:
        """The exact first error and the right step; `step` is None when all are right."""
        ...

    def write(self, correction: Correction) -> str:
        """A correction as text of the world's template."""
        ...

    def is_right_solution(self, problem: str, text: str) -> bool:
        """Whether every step and the answer are right."""
        ...

    def is_right_correction(
        self, problem: str, steps: Sequence[str], correction: Correction
    ) -> bool:
        """Whether it names the first error and the corrected step is right."""
        ...


class OracleTeacher:
    """Teacher and inspector that know: for generated worlds, tests and upper bounds."""

    name = "oracle"

    def __init__(self, solver: Solver) -> None:
        self.solver = solver

    def solutions(
        self, problems: Sequence[MathProblem], feedback: Sequence[str | None]
    ) -> list[str]:
        """Right solutions; there is nothing to object to."""
        return [self.solver.solution(problem.problem) for problem in problems]

    def corrections(self, cases: Sequence[ErrorCase], feedback: Sequence[str | None]) -> list[str]:
        """Exact corrections of the first errors."""
        return [
            self.solver.write(self.solver.correction(case.problem, case.student_steps))
            for case in cases
        ]

    def solution_faults(
        self, problems: Sequence[MathProblem], texts: Sequence[str]
    ) -> list[str | None]:
        """See `Inspector`; exact."""
        return [
            None if self.solver.is_right_solution(problem.problem, text) else "a step is wrong"
            for problem, text in zip(problems, texts, strict=True)
        ]

    def correction_faults(
        self, cases: Sequence[ErrorCase], corrections: Sequence[Correction]
    ) -> list[str | None]:
        """See `Inspector`; exact."""
        return [
            None
            if self.solver.is_right_correction(case.problem, case.student_steps, claim)
            else "it does not correct the first error"
            for case, claim in zip(cases, corrections, strict=True)
        ]
