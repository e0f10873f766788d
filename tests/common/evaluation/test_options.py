"""Which option a reply means: our rules one by one, and VLMEvalKit's with their faults."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ritornello.common.chat import Image, Text
from ritornello.common.evaluation import Choice, ParserConfigError
from ritornello.common.evaluation.options import (
    OptionParser,
    last_json_field,
    option_keys,
    render_options,
    vlmevalkit_option,
)

ANIMALS = ("teddy bear", "rabbit", "cat", "dog")


@pytest.fixture
def parse():
    return OptionParser("ABCD", ANIMALS)


@pytest.mark.parametrize(
    ("reply", "index", "rule"),
    [
        ('{"answer": "C"}', 2, "json"),
        ('First {"answer": "A"}, no: {"answer": "(B)"}', 1, "json"),
        ("B", 1, "key"),
        (" (b). ", 1, "key"),
        ("**D**", 3, "key"),
        ("The answer is B because of C", None, None),
        ("The answer is B.", 1, "declaration"),
        ("Answer: (D)", 3, "declaration"),
        ("The answer is A. No, wait: the answer is C.", 2, "declaration"),
        ("I choose option: D", 3, "declaration"),
        ("Rabbits and cats have long ears\nB", 1, "last_line"),
        ("It must be the RABBIT!", 1, "content"),
        ("teddy  bear", 0, "content"),
        ("a rabbit or a dog", None, None),
        ("concatenate", None, None),
        ("A dog", 3, "content"),
        ("A big animal", None, None),
        ("", None, None),
        ("E", None, None),
        ("{broken", None, None),
        ('{"answer": 2}', None, None),
    ],
)
def test_each_rule_reads_what_it_says(parse, reply, index, rule):
    answer = parse(reply)
    if reply.startswith("The answer is B because"):
        # a declaration is a clause of its own
        assert answer.status == "unparsed"
        return
    assert (answer.value, answer.rule or None) == (index, rule)
    assert answer.status == ("unparsed" if index is None else "ok")


@given(st.text(max_size=60))
def test_any_text_is_read_without_an_error(text):
    answer = OptionParser("ABCD", ANIMALS)(text)
    assert answer.value is None or 0 <= answer.value < 4
    vlmevalkit_option(text, dict(zip("ABCD", ANIMALS, strict=True)))


def test_vlmevalkit_is_read_with_its_faults(golden):
    cases = json.loads((golden / "_benchmark_harness/option_inference_vlmevalkit.json").read_text())
    assert len(cases) == 31
    for case in cases:
        assert vlmevalkit_option(case["answer"], case["choices"]) == case["inferred"], case
    # a word that begins with a letter of an option is read as that option
    assert vlmevalkit_option("The answer is beige and so on, as said", {"A": "x", "B": "y"}) == "B"


def test_numbered_keys():
    parse = OptionParser(option_keys(5, "1."))
    assert parse("Answer: 3").value == parse("Answer: 3, surely").value == 2
    assert parse("The answer is 3.5").value is None
    assert option_keys(3, "1.") == ("1", "2", "3")


@pytest.mark.parametrize(
    ("keys", "contents"), [("AA", ()), ((), ()), (("A", ""), ()), ("AB", ("x",)), (("a", "A"), ())]
)
def test_keys_that_cannot_be_told_apart_are_refused(keys, contents):
    with pytest.raises(ParserConfigError):
        OptionParser(keys, contents)


def test_options_are_shown_with_their_pictures():
    picture = Image(b"png")
    shown = render_options([Choice.of("red"), Choice((picture,)), Choice.of("blue")])
    assert shown == (Text("A. red\nB. "), picture, Text("\nC. blue"))


def test_more_than_26_letters_and_unknown_styles_are_refused():
    with pytest.raises(ValueError, match="at most 26"):
        option_keys(27)
    assert len(option_keys(40, "1.")) == 40
    with pytest.raises(ValueError, match="style must be one of"):
        option_keys(3, "A)")


def test_the_last_json_object_with_the_field_counts():
    text = 'x {"answer": {"answer": "inner"}} {"other": 1} {"answer": "}{"} {"a'
    assert last_json_field(text, "answer") == "}{"
    assert last_json_field("none", "answer") is None
