"""Inference: solve, verify, repair (paper sec. 3.3, last paragraph)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, overload

from ritornello.common.chat import ChatClient, GenerationParams
from ritornello.methods.supercorrect.answers import extract_answer
from ritornello.methods.supercorrect.templates import (
    Correction,
    CorrectionFormat,
    CorrectionTemplate,
    HierarchicalTemplate,
    SolutionTemplate,
    as_client_prompt,
)
from ritornello.methods.supercorrect.traces import solution_steps

Repair = Literal["regenerate", "answer"]


@dataclass(frozen=True)
class Solution:
    """A solved problem.

    Args:
        steps: texts of the steps after the last repair.
        answer: final answer, None where there is none.
        first_answer: the answer before any verification.
        claims: what each verification pass said.
    """

    steps: tuple[str, ...]
    answer: str | None
    first_answer: str | None
    claims: tuple[Correction | None, ...] = ()


def read_solution(template: SolutionTemplate, text: str) -> Solution:
    """Steps and answer of a model's text."""
    trace = template.parse(text)
    steps = tuple(step.text for step in trace.steps) or solution_steps(text)
    answer = trace.answer or extract_answer(text) or None
    return Solution(steps, answer, answer)


@overload
def solve(
    model: ChatClient,
    problem: str,
    self_correct: bool = True,
    *,
    template: SolutionTemplate | None = None,
    correction: CorrectionFormat | None = None,
    params: GenerationParams | None = None,
    repair: Repair = "regenerate",
    max_rounds: int = 1,
) -> Solution: ...


@overload
def solve(
    model: ChatClient,
    problem: Sequence[str],
    self_correct: bool = True,
    *,
    template: SolutionTemplate | None = None,
    correction: CorrectionFormat | None = None,
    params: GenerationParams | None = None,
    repair: Repair = "regenerate",
    max_rounds: int = 1,
) -> list[Solution]: ...


def solve(
    model: ChatClient,
    problem: str | Sequence[str],
    self_correct: bool = True,
    *,
    template: SolutionTemplate | None = None,
    correction: CorrectionFormat | None = None,
    params: GenerationParams | None = None,
    repair: Repair = "regenerate",
    max_rounds: int = 1,
) -> Solution | list[Solution]:
    """SOLVE -> VERIFY -> keep, or replace step k and go on from it.

    Args:
        model: the trained student.
        problem: one, or many that are batched.
        self_correct: verify with the ungrounded correction prompt.
        template: of solutions.
        correction: ungrounded correction format.
        params: how to decode.
        repair: "regenerate" replaces step k by its correction and lets the model continue (the
            client must take the beginning of an answer); "answer" takes the correction's answer.
        max_rounds: verification passes at most, 1 (the paper) to 3; a pass without a claim ends it.

    Returns:
        The solution of one problem, or those of many in order.

    Raises:
        ValueError: an unknown `repair`, or `max_rounds` outside 1..3.
    """
    if repair not in ("regenerate", "answer"):
        raise ValueError(f"repair must be 'regenerate' or 'answer', got {repair!r}")
    if not 1 <= max_rounds <= 3:
        raise ValueError(f"max_rounds must be in 1..3, got {max_rounds}")
    problems = [problem] if isinstance(problem, str) else list(problem)
    template = template or HierarchicalTemplate()
    correction = correction or CorrectionTemplate()
    params = params or GenerationParams(max_tokens=2048)
    prompts = [as_client_prompt(template.prompt(problem)) for problem in problems]
    answers = model.generate(prompts, params)
    solutions = [read_solution(template, answer.text) for answer in answers]
    active = list(range(len(problems))) if self_correct else []
    for _ in range(max_rounds):
        active = [index for index in active if solutions[index].steps]
        checks = [
            as_client_prompt(correction.prompt(problems[index], solutions[index].steps))
            for index in active
        ]
        claims = [correction.parse(answer.text) for answer in model.generate(checks, params)]
        faulty = []
        for index, claim in zip(active, claims, strict=True):
            solutions[index] = _with_claim(solutions[index], claim)
            if claim is not None and 1 <= (claim.step or 0) <= len(solutions[index].steps):
                faulty.append(index)
        _repair(model, problems, solutions, faulty, template, params, repair)
        active = faulty
    return solutions[0] if isinstance(problem, str) else solutions


def _with_claim(solution: Solution, claim: Correction | None) -> Solution:
    return Solution(
        solution.steps, solution.answer, solution.first_answer, (*solution.claims, claim)
    )


def _repair(
    model: ChatClient,
    problems: Sequence[str],
    solutions: list[Solution],
    faulty: Sequence[int],
    template: SolutionTemplate,
    params: GenerationParams,
    repair: Repair,
) -> None:
    begun = {}
    for index in faulty:
        old, claim = solutions[index], solutions[index].claims[-1]
        assert claim is not None  # a faulty solution has a claim
        assert claim.step is not None
        begun[index] = (*old.steps[: claim.step - 1], claim.text)
        if repair == "answer":
            steps = (*begun[index], *old.steps[claim.step :])
            answer = claim.answer or old.answer
            solutions[index] = Solution(steps, answer, old.first_answer, old.claims)
    if repair == "answer":
        return
    prompts = [as_client_prompt(template.prompt(problems[index], begun[index])) for index in faulty]
    for index, completion in zip(faulty, model.generate(prompts, params), strict=True):
        old, rest = solutions[index], read_solution(template, completion.text)
        later = template.parse(completion.text).steps
        steps = (*begun[index], *(step.text for step in later))
        solutions[index] = Solution(steps, rest.answer, old.first_answer, old.claims)
