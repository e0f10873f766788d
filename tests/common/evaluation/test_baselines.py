"""Clients whose score is known before they are asked."""

import json
from math import sqrt

import pytest
from quiz import Quiz

from ritornello.common.chat import ScriptedClient
from ritornello.common.evaluation import Choice, ChoiceTarget, Sample, SampleError, evaluate
from ritornello.common.evaluation.baselines import (
    fixed_slot,
    frequency,
    letters,
    liar,
    oracle,
    rambling,
    saying,
    scripted,
    uniform,
    uniform_single,
    uniform_subset,
)
from ritornello.common.evaluation.chance import (
    expected_random,
    expected_random_subset,
    most_frequent,
)


def accuracy(task, client, reading="ours"):
    records = evaluate(task, client)
    return sum(record.scores[reading].value for record in records) / len(records)


@pytest.mark.parametrize("scored", [False, True])
def test_oracle_scores_one_liar_zero_and_a_fixed_slot_its_share(scored):
    quiz = Quiz(number=41, scored=scored)
    assert accuracy(quiz, scripted(quiz, oracle, name="oracle")) == 1
    assert accuracy(quiz, scripted(quiz, liar, name="liar")) == 0
    assert accuracy(quiz, scripted(quiz, fixed_slot(1), name="slot")) == 10 / 41
    assert accuracy(quiz, scripted(quiz, frequency(quiz.samples()), name="most")) == 11 / 41


@pytest.mark.parametrize("policy", [uniform, uniform_single])
def test_guessing_is_at_chance(policy):
    quiz = Quiz(number=800)
    chance = expected_random(quiz.samples())
    assert chance == 0.25
    found = accuracy(quiz, scripted(quiz, policy(1), name="random"))
    assert abs(found - chance) < 4 * sqrt(chance * (1 - chance) / 800)
    assert found == accuracy(quiz, scripted(quiz, policy(1), name="random"))
    assert found != accuracy(quiz, scripted(quiz, policy(2), name="random"))


def test_refusing_is_not_right_and_not_read():
    records = evaluate(Quiz(), saying())
    assert {record.answers["ours"].status for record in records} == {"unparsed"}


def test_our_parser_reads_all_ramblings_and_the_official_one_does_not():
    quiz = Quiz(number=40)
    ours, official = [], []
    for number in range(10):
        client = scripted(quiz, oracle, write=rambling(number), name="rambler")
        ours.append(accuracy(quiz, client))
        official.append(accuracy(quiz, client, "official"))
    assert ours == [1.0] * 10
    assert min(official) < 1


def test_chance_levels(golden):
    expected = json.loads((golden / "_benchmark_harness/chance.json").read_text())

    def questions(options, right, count=1):
        choices = tuple(Choice.of(str(i)) for i in range(options))
        return [Sample(f"{i}", (), choices, ChoiceTarget.of(*range(right))) for i in range(count)]

    for options, chance in expected["single"].items():
        assert expected_random(questions(int(options), 1)) == pytest.approx(chance, abs=1e-12)
    for name, chance in expected["multi_known_count"].items():
        right = int(name[0])
        found = expected_random(questions(5, right), known_count=True)
        assert found == pytest.approx(chance, abs=1e-12)
    mixture = questions(5, 1, 6) + questions(5, 2, 3) + questions(5, 3, 1)
    found = expected_random(mixture, known_count=True)
    assert found == pytest.approx(expected["k_halu_60_30_10_known_count"], abs=1e-12)
    assert expected_random_subset(5) == expected["multi_any_nonempty_subset_of_5"]
    assert most_frequent(mixture) == (0,)


def test_subsets_are_never_empty_and_all_occur():
    choices = tuple(Choice.of(str(i)) for i in range(3))
    samples = [Sample(str(i), (), choices, ChoiceTarget.of(0)) for i in range(300)]
    drawn = [tuple(uniform_subset(0)(sample)) for sample in samples]
    assert len(set(drawn)) == 7
    assert () not in drawn


def test_a_client_that_cannot_know_says_so():
    class Ambiguous(Quiz):
        def render(self, sample):
            return super().render(super().samples()[0])

    task = Ambiguous()
    with pytest.raises(SampleError, match="q0 and q1 have one prompt"):
        evaluate(task, scripted(task, oracle, name="oracle"))
    other = scripted(Quiz(number=2), oracle, write=letters, name="oracle")
    with pytest.raises(SampleError, match="none of quiz"):
        evaluate(Quiz(number=3), other)


def test_a_target_outside_the_options_is_refused():
    for target in (ChoiceTarget.of(2), ChoiceTarget.of(-1), ChoiceTarget.of()):
        with pytest.raises(SampleError, match="sample x"):
            Sample("x", (), (Choice.of("a"), Choice.of("b")), target)
    assert isinstance(saying(), ScriptedClient)
