"""How well a model finds and repairs errors (paper Table 6) and how steadily it solves (Fig. 5)."""

import statistics
from collections.abc import Callable, Sequence

from ritornello.common.chat import ChatClient, GenerationParams, replicates
from ritornello.methods.supercorrect.answers import answers_equal
from ritornello.methods.supercorrect.records import ErrorCase, MathProblem
from ritornello.methods.supercorrect.solving import read_solution
from ritornello.methods.supercorrect.templates import (
    Correction,
    CorrectionFormat,
    CorrectionTemplate,
    HierarchicalTemplate,
    SolutionTemplate,
    as_client_prompt,
)

IsRight = Callable[[ErrorCase, Correction], bool]


def states_right_answer(case: ErrorCase, claim: Correction) -> bool:
    """The correction trace ends in the right answer: what can be checked without an oracle."""
    return answers_equal(claim.answer, case.answer)


def judge_corrections(
    model: ChatClient,
    cases: Sequence[ErrorCase],
    *,
    template: CorrectionFormat | None = None,
    params: GenerationParams | None = None,
    is_right: IsRight = states_right_answer,
) -> tuple[list[bool], list[bool]]:
    """Per case: whether the first error was located, and whether it was also put right.

    Raises:
        ValueError: a case whose `first_error` is not known.
    """
    unknown = [case.id for case in cases if case.first_error is None]
    if unknown:
        raise ValueError(f"first_error must be known for every case, it is None for {unknown[:5]}")
    template = template or CorrectionTemplate()
    prompts = [
        as_client_prompt(template.prompt(case.problem, case.student_steps)) for case in cases
    ]
    answers = model.generate(prompts, params or GenerationParams(max_tokens=2048))
    claims = [template.parse(answer.text) for answer in answers]
    located = [
        claim is not None and claim.step == case.first_error
        for case, claim in zip(cases, claims, strict=True)
    ]
    corrected = [
        found and claim is not None and is_right(case, claim)
        for case, claim, found in zip(cases, claims, located, strict=True)
    ]
    return located, corrected


def evaluate_correction(
    model: ChatClient,
    cases: Sequence[ErrorCase],
    *,
    template: CorrectionFormat | None = None,
    params: GenerationParams | None = None,
    is_right: IsRight = states_right_answer,
) -> dict[str, float]:
    """Table 6: shares of wrong solutions whose first error is located, and located and corrected.

    Evaluate on problems that gave no training pair.

    Args:
        model: asked without the reference solution.
        cases: wrong solutions with known `first_error`; at least one.
        template: ungrounded correction format.
        params: how to decode.
        is_right: judges a correction that names the right step; by default its final answer is.
    """
    if not cases:
        raise ValueError("cases must hold at least one wrong solution, got none")
    located, corrected = judge_corrections(
        model, cases, template=template, params=params, is_right=is_right
    )
    return {"locate": statistics.fmean(located), "correct": statistics.fmean(corrected)}


def repeated_accuracy(
    model: ChatClient,
    problems: Sequence[MathProblem],
    *,
    repeats: int,
    params: GenerationParams,
    template: SolutionTemplate | None = None,
    judge: Callable[[str | None, str], bool] = answers_equal,
) -> list[list[bool]]:
    """Fig. 5: right or wrong of each problem in each of `repeats` independent sampled runs."""
    template = template or HierarchicalTemplate()
    prompts = [
        draw
        for problem in problems
        for draw in replicates(as_client_prompt(template.prompt(problem.problem)), repeats)
    ]
    answers = model.generate(prompts, params)
    right = [
        judge(read_solution(template, answer.text).answer, problems[place // repeats].answer)
        for place, answer in enumerate(answers)
    ]
    return [right[run::repeats] for run in range(repeats)]
