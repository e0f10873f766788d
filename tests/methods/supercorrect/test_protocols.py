"""What each protocol asks, and which replies it takes for right."""

import re

import pytest
from shop import shop_problems

from ritornello.common.chat import ScriptedClient
from ritornello.methods.supercorrect import (
    HierarchicalTemplate,
    MathProblem,
    few_shot_protocol,
    instruction_protocol,
    native_protocol,
    pass_at_1,
)
from ritornello.methods.supercorrect.protocols import GSM8K, MINERVA_MATH

PROBLEMS = [
    MathProblem("a", "Half of one?", "\\frac{1}{2}", "1/2", "math"),
    MathProblem("b", "Twelve hundred and a third?", "1200", "900+300", "math"),
    MathProblem("c", "One and one?", "2", "1+1=2", "math"),
]
EXAMPLES = [
    MathProblem(str(i), f"{i}+{{i}}?", str(2 * i), f"so {i}+{i} = {2 * i}") for i in range(8)
]


def answering(*texts):
    """A model that gives its replies in turn, and keeps its prompts and decoding."""
    replies, seen = iter(texts), []
    client = ScriptedClient(lambda prompt, params: seen.append((prompt, params)) or next(replies))
    return client, seen


def test_the_instruction_protocol_asks_by_the_template_and_reads_the_element():
    model, seen = answering(
        "<Step1>x</Step1><Answer>0.5</Answer>", "so 1,200", "<Answer>3</Answer>"
    )
    template = HierarchicalTemplate()
    assert pass_at_1(model, PROBLEMS, instruction_protocol(template)) == [True, True, False]
    asked = [prompt.messages[0].text for prompt, _ in seen]
    assert asked == [template.prompt(p.problem)[0]["content"] for p in PROBLEMS]
    assert {(params.temperature, params.max_tokens) for _, params in seen} == {(0.0, 2048)}


def test_the_native_protocol_has_a_system_message_and_reads_the_box():
    model, seen = answering(
        "\\boxed{1/2}", "thus $\\boxed{1200}$.", "\\boxed{2} <Answer>9</Answer>"
    )
    assert pass_at_1(model, PROBLEMS, native_protocol(), max_tokens=7) == [True, True, True]
    prompt, params = seen[0]
    assert [message.role for message in prompt.messages] == ["system", "user"]
    assert "\\boxed{}" in prompt.messages[0].text
    assert prompt.messages[1].text == "Half of one?"
    assert params.max_tokens == 7


@pytest.mark.parametrize(("layout", "shots"), [(MINERVA_MATH, 4), (GSM8K, 5)])
def test_few_shot_prompts_show_so_many_solved_examples_as_raw_text(layout, shots):
    model, seen = answering("", "", "")
    protocol = few_shot_protocol(EXAMPLES, layout, begin="<bos>")
    assert pass_at_1(model, PROBLEMS, protocol) == [False, False, False]
    text = seen[0][0].text
    assert text.startswith("<bos>" + layout.question.format(problem="0+{i}?"))
    assert text.endswith(layout.question.format(problem="Half of one?"))
    assert [int(n) for n in re.findall(r"so (\d+)\+", text)] == list(range(shots))
    answers = layout.final.findall(text)
    assert [answer.strip(" $") for answer in answers] == [str(2 * i) for i in range(shots)]
    with pytest.raises(ValueError, match=f"examples must hold at least {shots}, got 3"):
        few_shot_protocol(EXAMPLES[:3], layout)


def test_few_shot_replies_count_only_with_the_tasks_own_ending():
    """A right number alone is no answer, and what follows the model's next question is not read."""
    closing = "Final Answer: The final answer is ${}$. I hope it is correct."
    model, _ = answering(
        f"half. {closing.format('0.5')}\n\nProblem:\n{closing.format('7')}",
        "it is 1200",
        closing.format("3"),
    )
    math = few_shot_protocol(EXAMPLES, MINERVA_MATH)
    assert pass_at_1(model, PROBLEMS, math) == [True, False, False]
    model, _ = answering("1/2\n#### 0.5", "#### 1,200", "2\n\nQuestion: 9?\n#### 2")
    assert pass_at_1(model, PROBLEMS, few_shot_protocol(EXAMPLES, GSM8K)) == [True, True, False]


def test_a_model_that_continues_the_examples_rightly_passes():
    problems = shop_problems(9, seed=0)
    solutions = {p.problem: f" {p.solution}\n#### {p.answer}" for p in problems}

    def reply(prompt, params):
        return solutions[prompt.text.rpartition("Question: ")[2].removesuffix("\nAnswer:")]

    protocol = few_shot_protocol(problems[:5], GSM8K)
    assert all(pass_at_1(ScriptedClient(reply), problems[5:], protocol))
