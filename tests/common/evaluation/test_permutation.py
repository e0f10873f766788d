"""Every order asked: what a position-bound policy loses, and what content keeps."""

import json
from collections import Counter

import pytest
from quiz import Quiz

from ritornello.common.chat import ScriptedClient
from ritornello.common.evaluation import Choice, ChoiceTarget, Sample, SampleError, evaluate
from ritornello.common.evaluation.baselines import fixed_content, fixed_slot, oracle, scripted
from ritornello.common.evaluation.permutation import (
    Permuted,
    option_orders,
    position_bias,
    reduced,
    shown_order,
)


def mean(records):
    return sum(record.scores["ours"].value for record in records) / len(records)


def test_rotations_and_simple_policies_score_as_computed(golden):
    cases = json.loads((golden / "_benchmark_harness/circular.json").read_text())
    assert len(cases) == 4
    for case in cases:
        k, gold = case["k"], case["gold"]
        orders = option_orders(k)
        assert [list(order) for order in orders] == [r["order"] for r in case["rotations"]]
        choices = tuple(Choice.of(f"option {i}", f"{i}") for i in range(k))
        sample = Sample("q", (), choices, ChoiceTarget.of(gold))
        shown = [sample.permuted(order, str(r)) for r, order in enumerate(orders)]
        assert [s.gold[0] for s in shown] == [r["gold_slot"] for r in case["rotations"]]

        class One(Quiz):
            def samples(self, sample=sample):
                return [sample]

        task = Permuted(One())
        first = evaluate(task, scripted(task, fixed_slot(0), name="first"))
        for how, key in (("first", "vanilla"), ("mean", "mean_over_rotations")):
            assert mean(reduced(first, how)) == pytest.approx(case["always_first_slot"][key])
        assert mean(reduced(first, "circular")) == case["always_first_slot"]["circular"] == 0
        follower = evaluate(task, scripted(task, fixed_content(str(gold)), name="follower"))
        assert mean(reduced(follower, "circular")) == 1
        assert mean(reduced(follower, "plurality")) == 1
        assert case["random_guess"]["circular"] == pytest.approx((1 / k) ** k)


def test_a_fixed_slot_is_right_in_a_quarter_and_never_all_around():
    task = Permuted(Quiz())
    records = evaluate(task, scripted(task, fixed_slot(2), name="third"))
    assert len(records) == 48
    assert mean(reduced(records, "mean")) == 0.25
    assert mean(reduced(records, "circular")) == 0
    bias = position_bias(records, 4)
    assert bias.counts == (0, 0, 48, 0)
    assert bias.first == 0
    assert bias.p_value < 1e-9


def test_an_oracle_shows_no_position_bias():
    task = Permuted(Quiz())
    records = evaluate(task, scripted(task, oracle, name="oracle"))
    assert mean(reduced(records, "circular")) == 1
    assert position_bias(records, 4).counts == (12, 12, 12, 12)
    assert position_bias(records, 4).p_value == 1
    assert shown_order(records[1]) == (3, 0, 1, 2)


def test_balanced_orders_put_every_option_into_every_slot_equally_often():
    orders = option_orders(4, "balanced", limit=8, seed=3)
    for slot in range(4):
        assert Counter(order[slot] for order in orders) == dict.fromkeys(range(4), 2)
    assert len(option_orders(4, "all")) == 24
    assert option_orders(4, "balanced", seed=1) != option_orders(4, "balanced", seed=2)
    with pytest.raises(ValueError, match="rotations, balanced or all"):
        option_orders(4, "shuffled")


def test_plurality_ties_and_silence_are_not_right():
    task = Permuted(Quiz(number=2))
    first = evaluate(task, scripted(task, fixed_slot(0), name="first"))
    assert mean(reduced(first, "plurality")) == 0  # every content once: a tie
    silent = evaluate(task, ScriptedClient(lambda prompt, params: "hm"))
    assert mean(reduced(silent, "plurality")) == 0
    with pytest.raises(ValueError, match="no answer could be read"):
        position_bias(silent, 4)
    with pytest.raises(ValueError, match="how must be"):
        reduced(first, "best")


def test_unpermuted_records_have_no_order():
    quiz = Quiz(number=1)
    with pytest.raises(SampleError, match="was not permuted"):
        shown_order(evaluate(quiz, scripted(quiz, oracle, name="oracle"))[0])
    with pytest.raises(ValueError, match="permutation of"):
        quiz.samples()[0].permuted((0, 0, 1, 2), "x")
