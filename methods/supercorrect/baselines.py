"""What the paper compares with: plain SFT, Reflexion, and preference or imitation on other targets.

Each gives rows for the same two trainers, or answers through the same client, so that an arm
differs from the method in its data alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ritornello.common.chat import ChatClient, GenerationParams, Message
from ritornello.methods.supercorrect.records import ErrorCase, MathProblem
from ritornello.methods.supercorrect.solving import Solution, read_solution
from ritornello.methods.supercorrect.templates import (
    HierarchicalTemplate,
    SolutionTemplate,
    TextPrompt,
    as_client_prompt,
)
from ritornello.methods.supercorrect.traces import render_trace, steps_trace

CHAIN_OF_THOUGHT = (
    "Solve the math problem below step by step. End with the final result between <Answer> and "
    "</Answer>.\n"
)
REFLECT = (
    "Here is an attempt at a math problem. Without solving it again, reflect in a few sentences on "
    "what may have gone wrong and what to do differently.\n"
)


def plain_sft_rows(problems: Sequence[MathProblem]) -> list[dict[str, Any]]:
    """ "+SFT" of Table 2: imitation of the reference solutions as they are."""
    return [
        {
            "id": problem.id,
            "prompt": [{"role": "user", "content": CHAIN_OF_THOUGHT + problem.problem}],
            "completion": f"{problem.solution}\n<Answer>{problem.answer}</Answer>",
        }
        for problem in problems
    ]


def instance_dpo_pairs(
    cases: Sequence[ErrorCase], template: SolutionTemplate | None = None
) -> list[dict[str, Any]]:
    """DPO on whole solutions: the right one against the student's wrong one.

    Args:
        cases: wrong solutions; `solution` should be written as the template asks.
        template: of the student's solutions.
    """
    template = template or HierarchicalTemplate()
    pairs = []
    for case in cases:
        wrong = replace(steps_trace(case.student_steps), answer=case.student_answer)
        rejected = template.render(wrong)
        if case.solution.strip() != rejected.strip() and case.student_steps:
            pairs.append(
                {
                    "id": case.id,
                    "prompt": template.prompt(case.problem),
                    "chosen": case.solution,
                    "rejected": rejected,
                }
            )
    return pairs


def teacher_sft_rows(pairs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Imitation of the teacher's corrections alone: the chosen side of the method's pairs."""
    return [
        {"id": pair["id"], "prompt": pair["prompt"], "completion": pair["chosen"]} for pair in pairs
    ]


def reflexion_prompt(problem: str, attempt: Solution, reflection: str) -> TextPrompt:
    """The second attempt's question, which shows the first attempt and the reflection."""
    question = HierarchicalTemplate().prompt(problem)
    question[-1]["content"] += (
        f"\n\nEarlier attempt:\n{render_trace(steps_trace(attempt.steps))}"
        f"\n\nReflection on it:\n{reflection}"
    )
    return question


def reflexion(
    model: ChatClient, problems: Sequence[str], *, params: GenerationParams | None = None
) -> list[Solution]:
    """Reflexion without ground truth: attempt, reflect, attempt again; no training.

    The answer of the second attempt counts; without one, the first attempt's.
    """
    params = params or GenerationParams(max_tokens=2048)
    template = HierarchicalTemplate()
    answers = model.generate([as_client_prompt(template.prompt(p)) for p in problems], params)
    attempts = [read_solution(template, answer.text) for answer in answers]
    questions = [
        [Message.user(f"{REFLECT}\nProblem:\n{problem}\n\nAttempt:\n{answer.text}")]
        for problem, answer in zip(problems, answers, strict=True)
    ]
    reflections = [answer.text for answer in model.generate(questions, params)]
    prompts = [
        as_client_prompt(reflexion_prompt(problem, attempt, reflection))
        for problem, attempt, reflection in zip(problems, attempts, reflections, strict=True)
    ]
    seconds = [read_solution(template, a.text) for a in model.generate(prompts, params)]
    return [
        Solution(second.steps, second.answer or first.answer, first.answer)
        for first, second in zip(attempts, seconds, strict=True)
    ]
