"""Greedy pass@1 under the protocols by which results on MATH and GSM8K are published.

A model scores very differently under each (Qwen2.5-Math-7B-Instruct on MATH: 50 with few-shot
prompts, 81 with its own), so that a figure means nothing without its protocol. The paper's tables
come from lm-evaluation-harness; its repository also gives those of Qwen2.5-Math's own evaluation.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ritornello.common.chat import ChatClient, GenerationParams
from ritornello.common.errors import UserError
from ritornello.methods.supercorrect.answers import answers_equal, extract_answer
from ritornello.methods.supercorrect.records import MathProblem
from ritornello.methods.supercorrect.solving import read_solution
from ritornello.methods.supercorrect.templates import SolutionTemplate, TextPrompt, as_client_prompt

STEP_BY_STEP = "Please reason step by step, and put your final answer within \\boxed{}."
"""What the model card of Qwen2.5-Math-Instruct recommends as the system message."""


@dataclass(frozen=True)
class EvaluationProtocol:
    """How a problem is asked, and where the answer stands in the reply.

    Args:
        prompt: the question of a problem.
        answer: the final answer in a reply; None where there is none.
        stop: strings that end a reply.
    """

    prompt: Callable[[MathProblem], TextPrompt]
    answer: Callable[[str], str | None]
    stop: tuple[str, ...] = ()


def instruction_protocol(template: SolutionTemplate) -> EvaluationProtocol:
    """Zero-shot, by the prompt that stage 1 trains on (sec. 3.1)."""
    return EvaluationProtocol(
        lambda problem: template.prompt(problem.problem),
        lambda text: read_solution(template, text).answer,
    )


def native_protocol() -> EvaluationProtocol:
    """Zero-shot, as Qwen2.5-Math evaluates: its system message, its rule parser."""

    def prompt(problem: MathProblem) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": STEP_BY_STEP},
            {"role": "user", "content": problem.problem},
        ]

    return EvaluationProtocol(prompt, lambda text: extract_answer(text, compat="qwen") or None)


@dataclass(frozen=True)
class FewShotLayout:
    """A task of lm-evaluation-harness: raw text of worked examples, then the question.

    Args:
        shots: worked examples.
        question: with the slot `{problem}`.
        worked: what follows an example's question, with the slots `{solution}` and `{answer}`.
        final: finds the answer, its first group, in a reply; a reply without it is wrong.
        stop: how the model would begin another question.
    """

    shots: int
    question: str
    worked: str
    final: re.Pattern[str]
    stop: tuple[str, ...]


MINERVA_MATH = FewShotLayout(
    shots=4,
    question="Problem:\n{problem}\n\nSolution:",
    worked=" {solution}\nFinal Answer: The final answer is ${answer}$. I hope it is correct.",
    final=re.compile(r"Final Answer: The final answer is(.*?)\. I hope it is correct"),
    stop=("Problem:",),
)
GSM8K = FewShotLayout(
    shots=5,
    question="Question: {problem}\nAnswer:",
    worked=" {solution}\n#### {answer}",
    final=re.compile(r"#### (-?[0-9.,]+)"),
    stop=("Question:",),
)
LAYOUTS: Mapping[str, FewShotLayout] = {"gsm8k": GSM8K, "math": MINERVA_MATH}
"""By the `source` of the problems."""


def few_shot_protocol(
    examples: Sequence[MathProblem], layout: FewShotLayout, *, begin: str = ""
) -> EvaluationProtocol:
    """Few-shot without a chat template, as lm-evaluation-harness asks.

    Args:
        examples: training problems; the first `layout.shots` are shown with their solutions.
        layout: of the task.
        begin: what every text begins with: the tokenizer's `bos_token`, if it has one.

    Raises:
        UserError: too few examples.
    """
    if len(examples) < layout.shots:
        raise UserError(f"examples must hold at least {layout.shots}, got {len(examples)}")
    shown = "".join(
        layout.question.format(problem=example.problem)
        + layout.worked.format(solution=example.solution, answer=example.answer)
        + "\n\n"
        for example in examples[: layout.shots]
    )

    def prompt(problem: MathProblem) -> str:
        return begin + shown + layout.question.format(problem=problem.problem)

    def answer(text: str) -> str | None:
        found = layout.final.search(text)
        return found[1].strip() if found else None

    return EvaluationProtocol(prompt, answer, layout.stop)


def pass_at_1(
    model: ChatClient,
    problems: Sequence[MathProblem],
    protocol: EvaluationProtocol,
    *,
    max_tokens: int = 2048,
    judge: Callable[[str | None, str], bool] = answers_equal,
) -> list[bool]:
    """Whether the one greedy reply to each problem ends in the right answer.

    Args:
        model: what is evaluated.
        problems: with right answers.
        protocol: how they are asked.
        max_tokens: of a reply.
        judge: judge(the reply's answer, right answer).
    """
    params = GenerationParams(max_tokens=max_tokens, stop=protocol.stop)
    prompts = [as_client_prompt(protocol.prompt(problem)) for problem in problems]
    replies = model.generate(prompts, params)
    return [
        judge(protocol.answer(reply.text), problem.answer)
        for reply, problem in zip(replies, problems, strict=True)
    ]
