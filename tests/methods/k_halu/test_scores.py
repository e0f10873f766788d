"""Properties of selection, parsing and scores."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ritornello.methods.k_halu import (
    decision_mcc,
    expected_chance,
    held_out_deltas,
    macro_intervals,
    multilabel_macro,
    parse_binary_list,
    select_top_k,
    select_within,
    set_scores,
)
from ritornello.methods.k_halu.selection import is_tied

SETS = [set(c) for n in (1, 2, 3) for c in combinations(range(5), n)]
sets_of_options = st.lists(st.sampled_from(range(5)), max_size=5).map(set)


@given(
    st.lists(st.floats(-80, -0.1), min_size=5, max_size=5),
    st.lists(st.integers(1, 60), min_size=5, max_size=5),
    st.integers(1, 5),
)
def test_the_k_best_per_character_are_taken(loglik, lengths, k):
    picked = select_top_k(loglik, lengths, k)
    scores = [ll / n for ll, n in zip(loglik, lengths, strict=True)]
    assert len(set(picked)) == k
    left = [scores[i] for i in range(5) if i not in picked]
    assert not left or min(scores[i] for i in picked) >= max(left)


def test_the_later_of_equals_is_taken_and_ties_are_told():
    assert select_top_k([-1.0] * 5, [1] * 5, 2) == (3, 4)
    assert is_tied([-1.0] * 5, [1] * 5, 2)
    assert not is_tied([-1, -2, -3, -3, -3], [1] * 5, 2)
    assert not is_tied([-1.0] * 5, [1] * 5, 5)


def test_dividing_by_characters_counts_the_number_and_not_the_blank():
    """ "1. 가" has four characters: -4 / 4 equals -8 / 8."""
    assert is_tied([-4, -8, -99, -99, -99], [len("1. 가"), len("2. 가나다라마"), 5, 5, 5], 1)


@pytest.mark.parametrize(
    ("loglik", "lengths", "k", "message"),
    [
        ([-1.0] * 5, [1] * 5, 0, "k must be"),
        ([-1.0] * 5, [1] * 5, 6, "k must be"),
        ([-1.0] * 5, [1, 1, 0, 1, 1], 1, "lengths must be positive"),
        ([float("nan")] + [-1.0] * 4, [1] * 5, 1, "must be numbers"),
        ([-1.0] * 5, [1] * 4, 1, "must pair"),
    ],
)
def test_bad_numbers_are_told(loglik, lengths, k, message):
    with pytest.raises(ValueError, match=message):
        select_top_k(loglik, lengths, k)


def test_a_margin_takes_all_that_are_close():
    assert select_within([-1, -2, -3, -4, -5], [1] * 5, 0) == (0,)
    assert select_within([-1, -2, -3, -4, -5], [1] * 5, 2) == (0, 1, 2)
    with pytest.raises(ValueError, match="delta"):
        select_within([-1] * 5, [1] * 5, -1)


def test_margins_are_chosen_on_other_documents():
    """Document b alone wants a wide margin, so it never gets one itself."""
    scores = [[0, -1, -9, -9, -9]] * 3 + [[0, -5, -5, -9, -9]]
    gold = [{0, 1}] * 3 + [{0, 1, 2}]
    deltas = held_out_deltas(scores, gold, ["a", "c", "d", "b"])
    assert deltas[3] == 1
    with pytest.raises(ValueError, match="one document"):
        held_out_deltas(scores, gold, ["a"] * 4)


def test_margins_equal_an_obvious_search():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(12, 5)).tolist()
    gold = [SETS[i] for i in rng.integers(len(SETS), size=12)]
    documents = list("aabbccddeeff")
    found = held_out_deltas(scores, gold, documents)
    candidates = sorted({max(row) - value for row in scores for value in row})
    for i, document in enumerate(documents):

        def mean_f1(delta, document=document):
            return sum(
                set_scores(gold[j], select_within(scores[j], [1] * 5, delta + 1e-12))["f1"]
                for j in range(12)
                if documents[j] != document
            )

        assert mean_f1(found[i]) == pytest.approx(max(map(mean_f1, candidates)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[1, 0, 1, 0, 0]", (1, 0, 1, 0, 0)),
        ("[ 1 , 0 , 1 , 0 , 0 ]", (1, 0, 1, 0, 0)),
        ("(1,0,1,0,0)", (1, 0, 1, 0, 0)),
        ("[1 0 1 0 0]", (1, 0, 1, 0, 0)),
        ("10100", (1, 0, 1, 0, 0)),
        ("설명\n[1,0,1,0,0]", (1, 0, 1, 0, 0)),
        ("[1, 0, 1, 0, 0,]", (1, 0, 1, 0, 0)),
        ("[１，0，1，0，0]", (1, 0, 1, 0, 0)),
        ("[1,1,1,1,1]\n다시 생각하면 정답: [1,0,1,0,0]", (1, 0, 1, 0, 0)),
        ("[1,0,1,0,0] [0,0,0,0,0]", None),
        ("[1,0,1,0,0] or again [1,0,1,0,0]", (1, 0, 1, 0, 0)),
        ("[1, 0, 1, 0]", None),
        ("[1, 0, 1, 0, 0, 0]", None),
        ("[2, 0, 2, 0, 0]", None),
        ("201010", None),
        ("1,3", None),
        ("1. 첫번째 문장", None),
        ("", None),
    ],
)
def test_our_parser_reads_lists_in_any_dress_and_guesses_none(text, found):
    assert parse_binary_list(text) == found


@given(st.lists(st.integers(0, 1), min_size=5, max_size=5), st.sampled_from([", ", ",", " , "]))
def test_every_list_is_read_back(marks, comma):
    text = f"정답: [{comma.join(map(str, marks))}]</s>"
    assert parse_binary_list(text) == tuple(marks)
    assert parse_binary_list(text, compat=True) == (None if comma == " , " else tuple(marks))


@example("1" * 5000)
@given(st.text(max_size=80))
def test_any_reply_is_read_without_an_error(text):
    ours = parse_binary_list(text)
    assert ours is None or (len(ours) == 5 and set(ours) <= {0, 1})
    parse_binary_list(text, compat=True)


@given(st.sampled_from(SETS), sets_of_options)
def test_set_scores_hang_together(gold, picked):
    s = set_scores(gold, picked)
    assert s["set_match"] == float(s["jaccard"] == 1) == float(s["f1"] == 1)
    assert s["set_match"] <= s["jaccard"] <= s["f1"] <= s["any_hit"]
    assert s["decisions"] == 1 - (s["over"] + s["under"]) / 5
    if len(picked) == len(gold):
        assert s["precision"] == s["recall"] == s["f1"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(SETS), sets_of_options), min_size=1, max_size=12))
def test_averages_equal_scikit_learn(pairs):
    from sklearn.metrics import precision_recall_fscore_support
    from sklearn.preprocessing import MultiLabelBinarizer

    gold, picked = [g for g, _ in pairs], [p for _, p in pairs]
    fit = MultiLabelBinarizer().fit(gold + picked)
    g, p = fit.transform(gold), fit.transform(picked)
    kinds = [("official", "macro"), ("micro", "micro"), ("items", "samples")]
    # one option alone is a binary problem to scikit-learn: only its macro average is ours
    for ours, theirs in kinds if g.shape[1] > 1 else kinds[:1]:
        expected = precision_recall_fscore_support(g, p, average=theirs, zero_division=0)
        found = multilabel_macro(gold, picked, ours)
        for name, value in zip(("precision", "recall", "f1"), expected, strict=False):
            assert found[name] == pytest.approx(value, abs=1e-12)


def test_macro_f1_punishes_a_place_and_not_a_mistake():
    """Always option 5 is right in a fifth of the items, but macro-F1 knows only one class of it."""
    gold = [{i % 5} for i in range(50)]
    picked = [{4}] * 50
    assert multilabel_macro(gold, picked, "items")["f1"] == pytest.approx(0.2)
    assert multilabel_macro(gold, picked)["f1"] == pytest.approx((1 / 3) / 5)


def test_intervals_of_macro_scores_equal_resampling_by_hand():
    rng = np.random.default_rng(3)
    gold = [SETS[i] for i in rng.integers(len(SETS), size=60)]
    picked = [SETS[i] for i in rng.integers(len(SETS), size=60)]
    clusters = rng.integers(20, size=60)
    for groups in (None, clusters):
        found = macro_intervals(gold, picked, clusters=groups, resamples=2000)
        labels = np.arange(60) if groups is None else groups
        members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
        values = []
        for _ in range(600):
            drawn = rng.integers(len(members), size=len(members))
            rows = np.concatenate([members[i] for i in drawn])
            values.append(
                multilabel_macro([gold[i] for i in rows], [picked[i] for i in rows])["f1"]
            )
        assert found["f1"] == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=0.025)


def test_chance_levels():
    mixture = [1] * 6 + [2] * 3 + [3]
    assert expected_chance(mixture) == pytest.approx(0.16)
    assert expected_chance(mixture, "any_hit") == pytest.approx(0.3)
    assert expected_chance(mixture, "subset") == 1 / 31
    for bad in ([], [0], [6]):
        with pytest.raises(ValueError, match="n_gold"):
            expected_chance(bad)
    with pytest.raises(ValueError, match="rule must be"):
        expected_chance([1], "lucky")


def test_mcc_is_one_for_the_right_sets_and_zero_for_all_or_nothing():
    gold = [{0, 1}, {2}]
    assert decision_mcc(gold, gold) == pytest.approx(1)
    assert decision_mcc(gold, [set(range(5))] * 2) == 0
    assert decision_mcc(gold, [set(range(5)) - g for g in gold]) == pytest.approx(-1)


def test_options_beyond_five_are_told():
    with pytest.raises(ValueError, match="got 5 in item 0"):
        multilabel_macro([{0}], [{5}])
    with pytest.raises(ValueError, match="average must be"):
        multilabel_macro([{0}], [{1}], "weighted")
    with pytest.raises(ValueError, match="must pair up"):
        multilabel_macro([{0}], [])
