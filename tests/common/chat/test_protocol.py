"""Prompts, settings and answers: validation, identity, sampling arithmetic."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ritornello.common.chat import (
    ChatClient,
    Completion,
    ContinuationScores,
    Flaky,
    GenerationParams,
    Image,
    Message,
    Prompt,
    ScriptedClient,
    Text,
    as_prompt,
    replicates,
    request_seed,
)
from ritornello.common.chat.beginnings import common_prefix, shared_beginnings
from ritornello.common.chat.sampling import choose, truncated_probs, uniforms
from ritornello.common.chat.scripted import first_stop


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_k", -1),
        ("logprobs", -1),
        ("stop", "\n"),
        ("stop", ("",)),
        ("first_token_temperature", 0.0),
    ],
)
def test_bad_parameters_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        GenerationParams(**{field: value})


def test_bad_prompts_are_named():
    with pytest.raises(ValueError, match="either text or at least one message"):
        Prompt()
    with pytest.raises(ValueError, match="role"):
        Message("robot", "hi")
    with pytest.raises(ValueError, match="n must be"):
        replicates("a", 0)


def test_the_three_ways_of_writing_a_prompt_agree():
    message = Message.user("hi")
    assert as_prompt([message]) == Prompt((message,))
    assert as_prompt("raw") == Prompt(text="raw")
    assert Message.user([Text("h"), Text("i")]).text == "hi"


def test_request_seed_depends_on_seed_content_and_replicate_alone():
    params = GenerationParams(seed=1)
    base = request_seed(Prompt(text="a"), params)
    others = [
        request_seed(Prompt(text="b"), params),
        request_seed(Prompt(text="a", sample=1), params),
        request_seed(Prompt(text="a"), GenerationParams(seed=2)),
        request_seed(Prompt((Message.user("a"),)), params),
        request_seed(Prompt((Message.user([Image(b"a")]),)), params),
    ]
    assert len({base, *others}) == 6
    assert base == request_seed(Prompt(text="a"), GenerationParams(seed=1, max_tokens=3))


def test_completion_survives_json():
    import json

    completion = Completion(
        "text", "length", (1, 2), None, (-0.5, -1.0), ({"a": -0.5}, {"b": -1.0}), attempts=3
    )
    assert Completion.from_json(json.loads(json.dumps(completion.to_json()))) == completion


def test_scores_add_up():
    scores = ContinuationScores(((-1.0, -2.0), (-2.5,)), (False, True))
    assert scores.total == (-3.0, -2.5)
    assert scores.mean == (-1.5, -2.5)
    assert scores.best == 1


def test_scripted_client_is_a_chat_client_and_cuts_like_a_model():
    client = ScriptedClient(lambda prompt, params: "one two\nthree four")
    assert isinstance(client, ChatClient)
    stopped, long = (
        client.generate(["x"], params)[0]
        for params in (GenerationParams(stop=("\n",)), GenerationParams(max_tokens=1))
    )
    assert (stopped.text, stopped.stop_reason) == ("one two", "\n")
    assert (long.text, long.finish_reason) == ("one", "length")


@given(st.text("ab\n", max_size=12), st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=3))
def test_first_stop_is_the_earliest(text, stops):
    cut, found = first_stop(text, stops)
    assert text.startswith(cut)
    assert all(stop not in cut for stop in stops)
    assert (found is None) == (not any(stop in text for stop in stops))


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=4))
def test_common_prefix_equals_the_obvious_loop(sequences):
    length = 0
    while all(len(s) > length and s[length] == sequences[0][length] for s in sequences):
        length += 1
    assert common_prefix(sequences) == length


@given(
    st.lists(st.integers(40, 80), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1)), min_size=1),
)
def test_shared_beginnings_are_beginnings_and_never_cost_tokens(sizes, parts):
    sequences = [[head % len(sizes)] * sizes[head % len(sizes)] + tail for head, tail in parts]
    beginnings, group = shared_beginnings(sequences)
    rests = []
    for sequence, number in zip(sequences, group, strict=True):
        begun = len(beginnings[number])
        assert sequence[:begun] == beginnings[number]
        rests.append(len(sequence) - begun)
    assert min(rests) >= 1
    computed = len(beginnings) * max(map(len, beginnings)) + len(sequences) * max(rests)
    assert computed <= len(sequences) * max(map(len, sequences))


def test_questions_in_variants_are_begun_once_each():
    questions = [[number] * 20 for number in range(4)]
    sequences = [[*question, 7, variant] for variant in range(8) for question in questions]
    beginnings, group = shared_beginnings(sequences)
    assert beginnings == [[*question, 7] for question in questions]
    assert group == list(range(4)) * 8


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (0, 0.7), (4, 0.6), (0, 0.9999)])
def test_truncation_keeps_what_the_definition_keeps(top_k, top_p):
    """Temperature, then the k best, then the smallest set whose mass reaches top_p."""
    params = GenerationParams(temperature=0.8, top_k=top_k, top_p=top_p)
    logits = torch.randn(5, 2000, generator=torch.Generator().manual_seed(0))
    probs, ids = truncated_probs(logits, params)
    for row in range(5):
        order = logits[row].argsort(descending=True)
        kept = order[:top_k] if top_k else order
        mass = torch.softmax(logits[row, kept] / 0.8, 0)
        if top_p < 1:
            kept = kept[: int((mass.cumsum(0) < top_p).sum()) + 1]
        nonzero = probs[row] > 0
        ours = torch.arange(2000)[nonzero] if ids is None else ids[row][nonzero]
        assert set(ours.tolist()) == set(kept.tolist())


def test_inverse_cdf_hits_each_token_with_its_probability():
    """A fine grid of draws lands on each token in proportion to its probability."""
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0]])
    draws = (torch.arange(10_000) + 0.5) / 10_000
    tokens = choose(
        logits.expand(10_000, -1), draws.tolist(), GenerationParams(temperature=1.0), first=False
    )
    share = torch.bincount(tokens, minlength=4) / 10_000
    torch.testing.assert_close(share, torch.softmax(logits[0], 0), atol=2e-4, rtol=0)


@pytest.mark.parametrize("vocabulary", [3, 256, 1000, 49_152])
def test_inverse_cdf_in_blocks_is_the_running_sum(vocabulary):
    logits = 4 * torch.randn(64, vocabulary, generator=torch.Generator().manual_seed(1))
    draws = np.r_[0.0, np.random.default_rng(0).random(62), np.nextafter(1, 0)]
    mass = torch.softmax(logits, -1).cumsum(-1, dtype=torch.float64)
    wanted = torch.from_numpy(draws)[:, None] * mass[:, -1:]
    plain = torch.searchsorted(mass, wanted, right=True).squeeze(1)
    tokens = choose(logits, draws.tolist(), GenerationParams(temperature=1.0), first=False)
    assert tokens.tolist() == plain.tolist()


def test_uniforms_are_repeatable_and_distinct_by_seed():
    assert (uniforms(5, 8) == uniforms(5, 8)).all()
    assert (uniforms(5, 8)[:4] == uniforms(5, 4)).all()
    assert (uniforms(5, 8) != uniforms(6, 8)).any()


def test_a_flaky_client_fails_by_what_is_asked_and_answers_the_rest():
    inner = ScriptedClient(lambda prompt, params: prompt.text, score=lambda prompt, text: (-1.0,))
    client = Flaky(inner, 0.4)
    assert isinstance(client, ChatClient)
    prompts = [f"q{i}" for i in range(200)]
    heard = []
    answers = client.generate(
        prompts, GenerationParams(), on_completion=lambda index, answer: heard.append(index)
    )
    assert heard == list(range(200))
    failed = [not answer.ok for answer in answers]
    assert 50 < sum(failed) < 110
    assert all(a.ok is False or a.text == q for a, q in zip(answers, prompts, strict=True))
    again = client.generate(prompts[::-1], GenerationParams(temperature=1.0))[::-1]
    assert failed == [not answer.ok for answer in again]
    other = Flaky(inner, 0.4, seed=1).generate(prompts, GenerationParams())
    assert failed != [not answer.ok for answer in other]
    assert client.score_continuations(["a"], [["b"]])[0].tokens == ((-1.0,),)
