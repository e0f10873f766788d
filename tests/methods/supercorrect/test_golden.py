"""The published parser's answers, closed-form DPO values and hand-labelled traces."""

import hashlib
import json

import pytest
import torch

from ritornello.methods.supercorrect import (
    cross_dpo_loss,
    extract_answer,
    parse_trace,
    sequence_logprob,
)
from ritornello.methods.supercorrect.answer_normal_form import normalize_answer
from ritornello.methods.supercorrect.answers import boxed_content


@pytest.fixture(scope="module")
def reference(golden):
    return json.loads((golden / "supercorrect" / "supercorrect.json").read_text())


def test_answers_equal_the_published_parser(reference):
    for case in reference["answers"]:
        text = case["text"]
        assert extract_answer(text, compat="qwen") == case["extract_answer"], text
        assert normalize_answer(text, compat="qwen") == case["strip_string"], text
        assert boxed_content(text) == case["find_box"], text


def test_loss_rewards_and_gradient_equal_the_closed_form(reference):
    for case in reference["dpo"]["losses"]:
        names = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")
        values = [torch.tensor(case[name], dtype=torch.float64) for name in names]
        values[0].requires_grad_(), values[1].requires_grad_()
        loss, chosen, rejected = cross_dpo_loss(*values, beta=case["beta"])
        loss.mean().backward()
        expected = {
            "per_example_loss": loss.detach(),
            "chosen_reward": chosen,
            "rejected_reward": rejected,
            "grad_policy_chosen": values[0].grad,
        }
        for name, value in expected.items():
            right = torch.tensor(case[name], dtype=torch.float64)
            torch.testing.assert_close(value, right, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(values[1].grad, -values[0].grad)
        assert (chosen > rejected).double().mean().item() == pytest.approx(case["accuracy"])


def test_sequence_logprob_sums_the_completion_span(reference):
    case = reference["dpo"]["sequence_logprob"]
    logits = torch.tensor(case["logits"], dtype=torch.float64)
    ids = torch.tensor(case["input_ids"])
    place = torch.arange(ids.shape[1])
    start = torch.tensor(case["completion_start"])[:, None]
    end = torch.tensor(case["completion_end"])[:, None]
    summed = sequence_logprob(logits, ids, (place >= start) & (place < end))
    right = torch.tensor(case["summed_logprob"], dtype=torch.float64)
    torch.testing.assert_close(summed, right, rtol=1e-6, atol=0)


def test_traces_parse_as_labelled(reference):
    for case in reference["traces"]:
        trace = parse_trace(case["text"])
        assert [step.text for step in trace.steps] == case["steps"]
        assert trace.first_error == case["first_error"]
        assert trace.answer == case["answer"]
        assert trace.generalized == case.get("generalized")
        wrong = trace.steps[trace.first_error - 1] if trace.first_error else None
        assert (wrong.cause if wrong else None) == case.get("cause")
        assert (wrong.correction if wrong else None) == case.get("correction")
        assert [step.key for step in trace.steps if step.key] == case.get("keys", [])


def test_a_supplied_prompt_is_checked_by_its_hash(reference, tmp_path):
    """The official wording is not shipped; its hash tells a user's copy from another text."""
    from ritornello.methods.supercorrect import HierarchicalTemplate

    right = reference["prompt"]["hierarchical_prompt"]["sha256_with_placeholder"]
    path = tmp_path / "prompt.txt"
    path.write_text("Solve in <Step1></Step1>.\n{input}")
    with pytest.raises(ValueError, match="sha256"):
        HierarchicalTemplate.from_file(path, sha256=right)
    own = hashlib.sha256(path.read_bytes()).hexdigest()
    prompt = HierarchicalTemplate.from_file(path, sha256=own).prompt("1 + 1?")
    assert prompt == [{"role": "user", "content": "Solve in <Step1></Step1>.\n1 + 1?"}]
    path.write_text("no slot")
    with pytest.raises(ValueError, match="input"):
        HierarchicalTemplate.from_file(path)
