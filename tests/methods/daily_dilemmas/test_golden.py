"""Equality with the published scripts; values to 1e-9."""

import json

import pytest

from ritornello.methods.daily_dilemmas import (
    THEORIES,
    Action,
    Dilemma,
    conflict_dilemmas,
    load_values,
    parse_choice,
    preference,
    principle_score,
)

TOLERANCE = 1e-9


def read(golden, name):
    return json.loads((golden / "daily_dilemmas" / name).read_text())


@pytest.fixture(scope="module")
def five(golden):
    return read(golden, "five_theories.json")


@pytest.fixture(scope="module")
def dilemmas(five):
    table, actions = load_values(), {}
    for row in five["rows"]:
        action = Action.of("", row["values"], table)
        actions.setdefault(row["idx"], {})[row["action_type"]] = action
    return [Dilemma(idx, "?", found) for idx, found in actions.items()]


def column(five, name):
    return {row["idx"]: row[name] for row in five["rows"]}


def test_replies_are_read_as_published(golden):
    cases = read(golden, "parse.json")
    assert len(cases) == 18
    for case in cases:
        assert parse_choice(case["text"]) == case["choice"], case


def test_the_shipped_table_is_the_published_one(golden):
    published = read(golden, "values.json")
    table = load_values()
    assert dict(table) == published
    assert len(table) == 301


@pytest.mark.parametrize("theory", THEORIES)
@pytest.mark.parametrize("model", ["rand", "yes"])
def test_preferences_of_five_theories(five, dilemmas, model, theory):
    table = preference(column(five, model), dilemmas, theory, ci=False)
    ours = dict(zip(table["class"], table["preference"], strict=True))
    assert ours == pytest.approx(five["preference_percent"][model][theory], abs=TOLERANCE)


def subset(dilemmas, idx):
    return [dilemma for dilemma in dilemmas if dilemma.idx in idx]


def test_scores_without_a_prompt(golden, five, dilemmas):
    for case in read(golden, "steering.json")["principles"]:
        found = conflict_dilemmas(case["sup"], case["opp"], dilemmas)
        assert sorted(found) == sorted(case["conflict_idx"])
        score = principle_score(
            case["sup"],
            case["opp"],
            subset(dilemmas, found),
            column(five, "rand"),
            counting="official_before",
            match="substring",
        )
        assert score.supporting == pytest.approx(case["official_before_sup"], abs=TOLERANCE)
        assert score.opposing == pytest.approx(case["official_before_opp"], abs=TOLERANCE)
        assert score.score == pytest.approx(case["official_before_score"], abs=TOLERANCE)
        for value, counts in (case["sup_counts"] | case["opp_counts"]).items():
            assert score.selected.get(value, 0) == counts["selected"], value
            assert score.neglected.get(value, 0) == counts["neglected"], value
        listed = {*case["sup_counts"], *case["opp_counts"]}
        assert {*score.selected, *score.neglected} == listed


def test_scores_under_either_prompt(golden, dilemmas):
    steering = read(golden, "steering.json")
    for case in steering["principles"]:
        for after in steering["after"][case["principle"]].values():
            score = principle_score(
                case["sup"],
                case["opp"],
                subset(dilemmas, case["conflict_idx"]),
                {int(idx): choice for idx, choice in after["responses"].items()},
                match="substring",
            )
            assert score.supporting == pytest.approx(after["sup_total"], abs=TOLERANCE)
            assert score.opposing == pytest.approx(after["opp_total"], abs=TOLERANCE)
            assert score.score == pytest.approx(after["score"], abs=TOLERANCE)


def test_exact_names_count_otherwise_than_substrings(golden, five, dilemmas):
    case = read(golden, "steering.json")["principles"][0]
    chosen = subset(dilemmas, case["conflict_idx"])
    scores = {
        match: principle_score(case["sup"], case["opp"], chosen, column(five, "rand"), match=match)
        for match in ("exact", "substring")
    }
    counts = {
        match: {
            value: score.selected.get(value, 0) + score.neglected.get(value, 0)
            for value in ("respect", "autonomy")
        }
        for match, score in scores.items()
    }
    assert counts["exact"] != counts["substring"]
    assert all(counts["exact"][v] <= counts["substring"][v] for v in counts["exact"])
