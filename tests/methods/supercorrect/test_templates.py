"""What is asked, and how pairs are laid out (eq. 8)."""

import pytest

from ritornello.methods.supercorrect.templates import (
    Correction,
    CorrectionTemplate,
    HierarchicalTemplate,
    as_client_prompt,
)

STEPS = ("2+3=5", "5*4=25", "25-1=24")
TEACHER = Correction(2, "slip", "5*4=20")


def test_the_student_never_sees_the_reference_solution():
    with pytest.raises(ValueError, match="solution"):
        CorrectionTemplate(grounded=False).prompt("p", STEPS, "the reference")
    with pytest.raises(ValueError, match="solution"):
        CorrectionTemplate(grounded=True).prompt("p", STEPS)
    assert (
        "the reference"
        in CorrectionTemplate(grounded=True).prompt("p", STEPS, "the reference")[0]["content"]
    )


def test_claims_are_read_from_a_trace():
    template = CorrectionTemplate()
    wrong = "<Step2>b<Cause>c</Cause><Correction>d</Correction></Step2>"
    text = f"<Step1>a</Step1>{wrong}<Answer>9</Answer>"
    assert template.parse(text) == Correction(2, "c", "d", "9")
    assert template.parse("<Step1>a</Step1><Answer>9</Answer>") == Correction(None, answer="9")
    assert template.parse("I do not know") is None


@pytest.mark.parametrize(
    ("student", "rejected"),
    [
        (Correction(2, "x", "y"), "<Cause>x</Cause><Correction>y</Correction></Step2>"),
        (
            Correction(3, "x", "y"),
            "</Step2>\n<Step3>25-1=24<Cause>x</Cause><Correction>y</Correction></Step3>",
        ),
        (Correction(1, "x", "y"), "</Step2>"),
        (Correction(None), "</Step2>"),
        (None, "</Step2>"),
    ],
)
def test_the_rejected_side_is_the_students_view_of_step_k(student, rejected):
    prompt, chosen, other = CorrectionTemplate().pair("p", STEPS, TEACHER, student)
    assert prompt[-1] == {"role": "assistant", "content": "<Step1>2+3=5</Step1>\n<Step2>5*4=25"}
    assert chosen == "<Cause>slip</Cause><Correction>5*4=20</Correction></Step2>"
    assert other == rejected


def test_without_the_wrong_step_the_prompt_ends_after_the_correct_prefix():
    template = CorrectionTemplate(include_wrong_step=False)
    prompt, chosen, rejected = template.pair("p", STEPS, TEACHER, Correction(None))
    assert prompt[-1]["content"] == "<Step1>2+3=5</Step1>"
    assert chosen == "<Cause>slip</Cause><Correction>5*4=20</Correction>"
    assert rejected == "This step is correct."
    first, *_ = template.pair("p", STEPS, Correction(1, "c", "r"), None)
    assert len(first) == 1  # an error in step 1 has no prefix


@pytest.mark.parametrize("step", [0, 4, None])
def test_a_location_outside_the_solution_is_refused(step):
    with pytest.raises(ValueError, match=r"1\.\.3"):
        CorrectionTemplate().pair("p", STEPS, Correction(step), None)


def test_a_begun_solution_becomes_the_answers_prefill():
    prompt = as_client_prompt(HierarchicalTemplate().prompt("p", ["a"]))
    assert prompt.prefill == "<Step1>a</Step1>\n"
    assert [message.role for message in prompt.messages] == ["user"]


def test_the_ablation_asks_for_no_generalisation():
    full, short = HierarchicalTemplate(), HierarchicalTemplate(generalized=False)
    assert "<Generalized>" in full.instruction
    assert "<Generalized>" not in short.instruction
    assert "<Answer>" in short.instruction
