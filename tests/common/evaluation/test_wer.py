"""Word error rates."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ritornello.common.evaluation.wer import edit_distance, word_error_rate, word_errors

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=7)


def test_word_errors_equal_the_golden_counts(golden):
    want = json.loads((golden / "cav2vec" / "wer.json").read_text())
    pairs = want["pairs"]
    found = word_errors([p["hyp"] for p in pairs], [p["ref"] for p in pairs])
    assert found.errors == [p["errors"] for p in pairs]
    assert found.reference_words == [p["ref_words"] for p in pairs]
    assert found.rate == pytest.approx(want["corpus_wer_percent"])


@given(WORDS, WORDS, WORDS)
def test_the_distance_is_a_metric(x, y, z):
    assert (edit_distance(x, y) == 0) == (x == y)
    assert edit_distance(x, y) == edit_distance(y, x)
    assert edit_distance(x, z) <= edit_distance(x, y) + edit_distance(y, z)
    assert abs(len(x) - len(y)) <= edit_distance(x, y) <= max(len(x), len(y))


@settings(deadline=None)
@given(WORDS, WORDS)
def test_it_agrees_with_another_implementation(x, y):
    jiwer = pytest.importorskip("jiwer")
    if y:
        assert word_error_rate(hyps=[" ".join(x)], refs=[" ".join(y)]) == pytest.approx(
            100 * jiwer.wer(" ".join(y), " ".join(x))
        )


def test_bad_pairs_are_told():
    with pytest.raises(ValueError, match="pair up"):
        word_errors(["a"], [])
    with pytest.raises(ValueError, match="lists of sentences"):
        word_errors("good day", "good way")
    with pytest.raises(ValueError, match="at least one word"):
        word_errors(["a"], [" "])
