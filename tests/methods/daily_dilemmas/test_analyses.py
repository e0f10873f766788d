"""Preferences, conflicts, scores and steering: against loops, closed forms and edge cases."""

import math
import re

import numpy as np
import pytest

from ritornello.common.chat import ScriptedClient
from ritornello.common.evaluation.baselines import saying
from ritornello.methods.daily_dilemmas import (
    THEORIES,
    Action,
    Dilemma,
    Principle,
    ValueAgent,
    conflict_dilemmas,
    elicit_principle,
    load_values,
    make_synthetic_dilemmas,
    preference,
    preference_difference,
    principle_score,
    reference,
    steering_effect,
    supporting_wins,
    value_relevance,
    written_dilemmas,
    written_principles,
)

TABLE = load_values()


@pytest.fixture(scope="module")
def dilemmas():
    return make_synthetic_dilemmas(200, seed=11)


def random_choices(dilemmas, seed, kinds=("to_do", "not_to_do", "undecided", "NA")):
    rng = np.random.default_rng(seed)
    return {d.idx: kinds[i] for d, i in zip(dilemmas, rng.integers(len(kinds), size=len(dilemmas)))}


def dilemma(idx, act, wait):
    return Dilemma(
        idx, "?", {"to_do": Action.of("a", act, TABLE), "not_to_do": Action.of("b", wait, TABLE)}
    )


@pytest.mark.parametrize("by", [*THEORIES, "value"])
def test_counts_equal_the_loop_over_rows(dilemmas, by):
    chosen = random_choices(dilemmas, seed=5)
    table = preference(chosen, dilemmas, by, ci=False)
    ours = {row["class"]: (row.selected, row.neglected) for _, row in table.iterrows()}
    assert ours == reference.preference_counts(chosen, dilemmas, by)
    assert table["preference"].between(-100, 100).all()


def test_the_opposite_choices_give_the_opposite_preferences(dilemmas):
    chosen = random_choices(dilemmas, 6, ("to_do", "not_to_do"))
    other = {i: "to_do" if c == "not_to_do" else "not_to_do" for i, c in chosen.items()}
    one, two = (preference(c, dilemmas, "maslow", ci=False) for c in (chosen, other))
    np.testing.assert_allclose(one["preference"], -two["preference"])


def test_a_class_counts_once_per_value_and_a_shared_value_cancels():
    # honesty and truthfulness are both Truthfulness; honesty stands on both sides
    small = [dilemma(7, ["honesty", "truthfulness"], ["honesty", "courage"])]
    table = preference({7: "to_do"}, small, "virtue").set_index("class")
    assert tuple(table.loc["Truthfulness", ["selected", "neglected"]]) == (2, 1)
    assert table.loc["Truthfulness", "preference"] == pytest.approx(100 / 3)
    assert table.loc["Courage", "preference"] == -100
    assert table["lo"].isna().all()  # a single dilemma has no interval
    values = preference({7: "to_do"}, small, "value", ci=False).set_index("class")
    assert values.loc["honesty", "preference"] == 0


def test_intervals_treat_both_actions_of_a_dilemma_as_one_draw():
    """Every dilemma has the class on both sides: the preference is 0 in every resample."""
    same = [dilemma(i, ["honesty"], ["truthfulness"]) for i in range(30)]
    row = preference(dict.fromkeys(range(30), "to_do"), same, "virtue").iloc[0]
    assert (row.preference, row.lo, row.hi) == (0, 0, 0)


def test_differences_carry_both_classes_in_their_samples(dilemmas):
    chosen = random_choices(dilemmas, 8, ("to_do", "not_to_do"))
    table = preference(chosen, dilemmas, "mft").set_index("class")
    expected = table.loc["Care", "preference"] - table.loc["Authority", "preference"]
    value, samples = preference_difference(chosen, dilemmas, "mft", "Care", "Authority")
    assert value == pytest.approx(expected)
    assert np.mean(samples) == pytest.approx(expected)
    nothing, own = preference_difference(chosen, dilemmas, "mft", "Care", "Care")
    assert nothing == 0
    assert np.allclose(own, 0)
    # two classes in one: the linearised error agrees with the width of the bootstraps
    half = 1.96 * np.std(samples, ddof=1) / math.sqrt(len(samples))
    width = math.hypot(
        *((table.loc[c, "hi"] - table.loc[c, "lo"]) / 2 for c in ("Care", "Authority"))
    )
    assert 0.5 * width < half < 2 * width
    with pytest.raises(ValueError, match="no decided dilemma"):
        preference_difference({}, dilemmas, "mft", "Care", "Authority")


def test_conflicts_equal_the_published_search(dilemmas):
    rng = np.random.default_rng(2)
    names = list(TABLE)
    found = 0
    for _ in range(30):
        drawn = [names[i] for i in rng.choice(80, 24, replace=False)]
        lists = dict.fromkeys(drawn[:12], 1.0), dict.fromkeys(drawn[12:], 1.0)
        ours = conflict_dilemmas(*lists, dilemmas)
        assert ours == reference.conflict_dilemmas(*map(list, lists), dilemmas)
        assert ours == conflict_dilemmas(*map(list, lists), dilemmas, "substring")
        found += len(ours)
    assert found > 100


def test_an_action_with_values_of_both_lists_is_no_conflict():
    sup, opp = {"honesty": 1.0}, {"courage": 1.0}
    assert conflict_dilemmas(sup, opp, [dilemma(1, ["honesty"], ["courage"])]) == [1]
    assert not conflict_dilemmas(sup, opp, [dilemma(1, ["honesty", "courage"], ["courage"])])
    assert not conflict_dilemmas(sup, opp, [dilemma(1, ["honesty"], ["hope"])])
    assert not conflict_dilemmas(sup, opp, [dilemma(1, ["honesty"], ["honesty"])])


def test_scores_by_hand_and_the_substring_trap():
    two = [
        dilemma(1, ["respect for rules", "honesty"], ["freedom"]),
        dilemma(2, ["respect"], ["freedom of choice"]),
    ]
    sup, opp = {"respect": 0.5, "honesty": 1.0}, {"freedom": 0.3}
    chosen = {1: "to_do", 2: "not_to_do"}
    exact = principle_score(sup, opp, two, chosen)
    assert (exact.supporting, exact.opposing) == (1.0, 0.0)
    loose = principle_score(sup, opp, two, chosen, match="substring")
    assert (loose.supporting, loose.opposing) == (1.5, pytest.approx(0.3))
    before = principle_score(sup, opp, two, chosen, counting="official_before")
    assert before.score == pytest.approx(0.5 + 1.0 - 0.3)


def test_the_official_score_without_a_prompt_does_not_depend_on_any_choice():
    own, principle = written_dilemmas()[:6], written_principles()[0]
    scores = {
        principle_score(
            principle.supporting,
            principle.opposing,
            own,
            random_choices(own, seed, ("to_do", "not_to_do")),
            counting=counting,
        ).score
        for counting in ("official_before",)
        for seed in range(20)
    }
    assert len(scores) == 1
    selected = {
        principle_score(
            principle.supporting,
            principle.opposing,
            own,
            random_choices(own, seed, ("to_do", "not_to_do")),
        ).score
        for seed in range(20)
    }
    assert len(selected) > 5


def test_written_dilemmas_conflict_on_their_own_principle_and_are_balanced():
    dilemmas, principles = written_dilemmas(), written_principles()
    assert len(dilemmas) == 48
    assert len(principles) == 8
    for number, principle in enumerate(principles):
        own = dilemmas[6 * number : 6 * number + 6]
        found = conflict_dilemmas(principle.supporting, principle.opposing, own)
        assert found == [d.idx for d in own]
        acting = supporting_wins(principle, own, dict.fromkeys(found, "to_do"))
        assert sum(acting.values()) == 3
        assert len({principle.supporting_prompt, principle.opposing_prompt, ""}) == 3


def wins(values):
    return {("p", number): value for number, value in enumerate(values)}


def test_steering_is_paired_and_lies_between_minus_one_and_one():
    yes, no = wins([True] * 12), wins([False] * 12)
    full = steering_effect(wins([True, False] * 6), yes, no)
    assert full.steerability.difference == (1.0, 1.0, 1.0)
    assert full.steerability.p_value == pytest.approx(2 * 0.5**12)
    assert full.from_supporting.difference.estimate == 0.5
    assert full.from_opposing.difference.estimate == -0.5
    stubborn = steering_effect(yes, yes, yes)
    assert stubborn.steerability.difference == (0.0, 0.0, 0.0)
    assert stubborn.steerability.p_value == 1


def test_undecided_pairs_leave_the_comparison_and_are_counted():
    result = steering_effect(
        wins([True, None, False]), wins([True, True, None]), wins([False, True, True])
    )
    assert result.steerability.n == 2
    assert result.steerability.difference.estimate == 0.5
    assert result.n_undecided == {"none": 1, "supporting": 1, "opposing": 0}


def test_an_empty_conflict_set_warns_or_raises():
    with pytest.warns(UserWarning, match="no conflict dilemma"):
        empty = steering_effect({}, {}, {})
    assert math.isnan(empty.none.estimate)
    with pytest.raises(ValueError, match="no conflict dilemma"):
        steering_effect({}, {}, {}, strict=True)
    with pytest.raises(ValueError, match="same"):
        steering_effect(wins([True]), {}, {})
    with pytest.raises(ValueError, match="at least one conflict"):
        principle_score({"honesty": 1.0}, {}, [], {})


def test_relevance_is_the_share_of_replies():
    replies = [
        "Supporting: Honesty, truth, nonsense\nOpposing: self, secrecy.",
        '{"supporting": ["honesty", "honesty"], "opposing": ["secrecy"]}',
        "I will not.",
        "**Supporting values:** honesty\n**Opposing values:** peace",
    ]
    assert value_relevance(replies, TABLE) == {
        "supporting": {"honesty": 0.75, "truth": 0.25},
        "opposing": {"self": 0.25, "secrecy": 0.5, "peace": 0.25},
    }
    with pytest.raises(ValueError, match="at least one"):
        value_relevance([], TABLE)


@pytest.mark.parametrize(
    "reply",
    [
        "Supporting: honesty, trust\r\nOpposing: loyalty, self\r\n",
        '```json\n{"supporting": ["honesty", "trust"],\n"opposing": ["loyalty", "self"]}\n```',
        "Supporting:\n1. Honesty\n2. Trust\n\nOpposing:\n- loyalty\n- self",
        "supporting: 'honesty'; `trust`\nopposing: “loyalty”, self",
    ],
)
def test_lists_are_read_in_the_forms_that_models_write(reply):
    sides = {"supporting": {"honesty": 1, "trust": 1}, "opposing": {"loyalty": 1, "self": 1}}
    assert value_relevance([reply], TABLE) == sides
    assert value_relevance([reply, "[" * 100_000], ["trust"])["supporting"] == {"trust": 0.5}


def test_a_model_names_the_values_and_writes_the_prompts():
    def reply(prompt, params):
        text = prompt.messages[-1].text
        if "Principle: be fair" in text:
            return f"Supporting: {'fairness' if prompt.sample % 2 else 'justice'}\nOpposing: self"
        return "You value fairness." if "self" not in text.split(": ")[-1] else "You value self."

    principle = elicit_principle(ScriptedClient(reply), "be fair", list(TABLE), calls=4)
    assert principle.supporting == {"justice": 0.5, "fairness": 0.5}
    assert principle.opposing == {"self": 1.0}
    assert principle.supporting_prompt == "You are a helpful assistant. You value fairness."
    assert principle.opposing_prompt == "You are a helpful assistant. You value self."
    with pytest.raises(ValueError, match="named no supporting value"):
        elicit_principle(saying("no"), "be fair", list(TABLE), calls=1)


def test_generated_dilemmas_are_what_was_asked_for(dilemmas):
    assert make_synthetic_dilemmas(200, seed=11) == dilemmas
    assert make_synthetic_dilemmas(200, seed=12) != dilemmas
    assert len({d.situation for d in dilemmas}) == 200
    shared = [
        bool(set(d.actions["to_do"].values) & set(d.actions["not_to_do"].values)) for d in dilemmas
    ]
    assert 40 <= sum(shared) <= 60  # a fifth, and what two draws have in common by chance
    for d in dilemmas:
        assert d.situation.endswith("?")
        for action in d.actions.values():
            assert 1 <= len(action.values) <= 5
            text = f"{d.situation} {action.text}"
            assert not [v for v in TABLE if re.search(rf"\b{re.escape(v)}\b", text, re.I)]


@pytest.mark.parametrize("overlap", [0.0, 0.25, 1.0])
def test_overlap_is_the_share_of_conflicts(overlap):
    lists = {"honesty": 1.0, "integrity": 1.0}, {"loyalty": 1.0, "self": 1.0}
    made = make_synthetic_dilemmas(
        80, 4, conflict=(tuple(lists[0]), tuple(lists[1])), overlap=overlap
    )
    assert len(conflict_dilemmas(*lists, made)) == overlap * 80


def test_generator_settings_are_checked():
    for bad, named in (
        ({"n": 0, "seed": 0}, "n must"),
        ({"n": 10**6, "seed": 0}, "n must"),
        ({"n": 4, "seed": 0, "shared": 2}, "shared"),
        ({"n": 4, "seed": 0, "overlap": 0.5}, "two lists"),
        ({"n": 4, "seed": 0, "conflict": (["hope"], ["hope"])}, "common"),
        ({"n": 4, "seed": 0, "conflict": (["hopes"], ["fear"])}, "did you mean 'hope'"),
    ):
        with pytest.raises(ValueError, match=named):
            make_synthetic_dilemmas(**bad)


def test_unknown_options_are_named(dilemmas):
    with pytest.raises(ValueError, match="by must be one of"):
        preference({}, dilemmas, "freud")
    for option in ({"counting": "all"}, {"match": "fuzzy"}):
        with pytest.raises(ValueError, match=next(iter(option))):
            principle_score({}, {}, dilemmas, {}, **option)
    with pytest.raises(ValueError, match="match"):
        conflict_dilemmas({}, {}, dilemmas, "fuzzy")


def test_a_principle_without_prompts_steers_nobody():
    principle = Principle("p", {"honesty": 1.0}, {"self": 1.0})
    small = [dilemma(1, ["honesty"], ["self"])]
    assert supporting_wins(principle, small, {1: "undecided"}) == {("p", 1): None}
    agent = ValueAgent({"honesty": 1.0})
    assert supporting_wins(principle, small, {1: agent.choose(small[0])}) == {("p", 1): True}
