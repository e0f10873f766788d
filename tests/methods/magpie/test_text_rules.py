"""Sanitiser, filters, preferences, exports and tags: properties and boundaries."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ritornello.common.chat import ScriptedClient
from ritornello.common.errors import UserError
from ritornello.methods.magpie import (
    GuardTagger,
    JudgeTagger,
    LanguageTagger,
    LikelihoodReward,
    LikelihoodTagger,
    build_preferences,
    filter_rows,
    longest,
    sanitize_instruction,
    to_sharegpt,
    to_trl_dpo,
    to_trl_sft,
)
from ritornello.methods.magpie.filters import (
    difficulty_at_least,
    distance_above,
    own_representative,
    reward_above,
)
from ritornello.methods.magpie.metrics import distinct_2, is_mathematical, is_request, rule_tag
from ritornello.methods.magpie.sanitizer import drop_reason, remove_prefix
from ritornello.methods.magpie.tags import TASKS, parse_judgement

PIECES = st.sampled_from(
    [
        "Task: ",
        "1. ",
        "What is",
        " it",
        "?",
        "\n",
        "**",
        '"',
        "Answer:",
        "# Step 1",
        ":",
        "<b>",
        "x",
    ]
)


@given(st.lists(PIECES, max_size=8).map("".join), st.sampled_from(["llama-3", "gemma-2"]))
def test_fixed_sanitiser_shortens_and_never_loses_a_whole_instruction(text, family):
    cut, _ = sanitize_instruction(text, family)
    assert len(cut) <= len(text) + 1, "a question mark may be put back after trailing blanks"
    official, _ = sanitize_instruction(text, family, "official")
    # tags, emphasis and labels alone are no instruction
    if remove_prefix(official.replace("<b>", "").replace("**", "")).removeprefix("Answer:"):
        assert cut, "what the official rules keep is kept"


def test_the_three_official_defects_are_mended_in_fixed():
    mixed = "Bake bread.\nAnswer: Mix flour."
    assert sanitize_instruction(mixed, "llama-3") == ("Bake bread.", 4)
    assert sanitize_instruction(mixed, "llama-3", "official")[1] == 99.2
    bold = "Say **hi** now?"
    assert sanitize_instruction(bold, "llama-3")[0] == "Say hi now?"
    assert sanitize_instruction(bold, "llama-3", "official")[0] == bold
    tagged = "<b>Title</b>\nrest"
    assert sanitize_instruction(tagged, "llama-3") == ("Title", 3)


def test_unknown_family_or_compat_is_named():
    with pytest.raises(ValueError, match="family"):
        sanitize_instruction("x", "llama-9")
    with pytest.raises(ValueError, match="compat"):
        sanitize_instruction("x", "llama-3", "mended")


@pytest.mark.parametrize(
    ("text", "finish", "reason"),
    [
        ("", "stop", "empty"),
        ("Why?", "length", "length-truncated"),
        ("## Introduction", "stop", "heading only"),
        ("**Overview**:", "stop", "heading only"),
        ("...!", "stop", "non-text"),
        ("Why?", "stop", None),
        ("**What is it?**", "stop", None),
    ],
)
def test_why_a_query_is_dropped(text, finish, reason):
    assert drop_reason(text, finish) == reason


def test_filter_boundaries():
    """Thresholds are strict, levels include their lower end, missing labels fail."""
    rows = [{"instruct_reward": value} for value in (-10.0, -9.999, None)]
    assert filter_rows(rows, [reward_above(-10.0)]) == rows[1:2]
    levels = [{"difficulty": value} for value in ("easy", "medium", "hard", None)]
    assert filter_rows(levels, [difficulty_at_least("medium")]) == levels[1:3]
    alone = [{"min_neighbor_distance": value} for value in (0.0, 1e-9, float("inf"), None)]
    assert filter_rows(alone, [distance_above(0.0)]) == alone[1:]
    groups = [
        {"conversation_id": "a", "min_similar_conversation_id": similar}
        for similar in (None, "a", "b")
    ]
    assert filter_rows(groups, [own_representative]) == groups[:2]


def test_filter_errors_are_named():
    with pytest.raises(ValueError, match="filter must be one of"):
        filter_rows([], "strict")
    with pytest.raises(ValueError, match="input_quality"):
        filter_rows([{"instruction": "x"}], "notebook")
    with pytest.raises(ValueError, match="must be finite"):
        filter_rows([{"instruct_reward": float("nan")}], [reward_above(0.0)])
    with pytest.raises(ValueError, match="difficulty must be one of"):
        difficulty_at_least("tricky")


def test_longest_keeps_the_earlier_of_equals_and_shuffles_by_seed():
    rows = [{"response": "x" * n, "id": i} for i, n in enumerate([3, 5, 3, 3])]
    assert {row["id"] for row in longest(rows, 3)} == {0, 1, 2}
    assert longest(rows, 4, seed=1) == longest(rows, 4, seed=1)


def test_preference_ties():
    def row(*rewards):
        return {"instruction": "q", "responses": ["a", "b", "c"], "rewards": rewards}

    assert build_preferences([row(1, 1, 1)]) == []
    kept = build_preferences([row(1, 1, 1)], ties="keep")[0]
    assert kept["chosen"] == kept["rejected"]
    pair = build_preferences([row(2, 2, 1)])[0]
    assert pair["chosen"][1]["content"] == "a"
    assert pair["rejected"][1]["content"] == "c"
    with pytest.raises(ValueError, match="finite"):
        build_preferences([row(1, float("inf"), 0)])
    with pytest.raises(ValueError, match="as many rewards as responses"):
        build_preferences([row(1, 2)])


def test_exports_hold_every_turn_in_order():
    row = {
        "id": "m-1",
        "instruction": "q1",
        "response": "r1",
        "instruction_2": "q2",
        "response_2": "r2",
        "difficulty": "easy",
    }
    shared = to_sharegpt([row])[0]
    assert [turn["value"] for turn in shared["conversations"]] == ["q1", "r1", "q2", "r2"]
    assert [turn["from"] for turn in shared["conversations"]] == ["human", "gpt"] * 2
    assert shared["difficulty"] == "easy"
    sft = to_trl_sft([row])[0]
    assert [turn["content"] for turn in sft["prompt"]] == ["q1", "r1", "q2"]
    assert sft["completion"] == [{"role": "assistant", "content": "r2"}]
    pair = build_preferences([{"instruction": "q", "responses": ["a", "b"], "rewards": [0, 1]}])
    dpo = to_trl_dpo(pair)[0]
    assert dpo == {
        "prompt": [{"role": "user", "content": "q"}],
        "chosen": [{"role": "assistant", "content": "b"}],
        "rejected": [{"role": "assistant", "content": "a"}],
    }


def test_judge_is_made_to_begin_and_end_with_braces():
    answer = '"intent": "x", "knowledge": "y", "difficulty": "Very Hard"} and more'
    llm = ScriptedClient(lambda prompt, params: answer)
    assert JudgeTagger(llm, "difficulty").tag(["q"]) == [
        {"intent": "x", "knowledge": "y", "difficulty": "very hard"}
    ]
    assert llm.calls[0].prefill == "{"


@pytest.mark.parametrize(
    "text",
    ["no json", "[1]", '{"difficulty": "so so"}', '{"difficulty": 3}', "{}"]
    + [f'{{"difficulty": {text}}}' for text in ("[" * 5000, "9" * 5000)],
    ids=len,
)
def test_unreadable_judgements_are_none(text):
    assert set(parse_judgement(text, TASKS["difficulty"]).values()) == {None}


def test_other_is_read_as_others_and_unknown_further_tags_fall_out():
    text = json.dumps({"primary_tag": "other", "other_tags": ["math", "juggling"]})
    parsed = parse_judgement(text, TASKS["classification"])
    assert parsed == {"primary_tag": "Others", "other_tags": ["Math"]}
    with pytest.raises(ValueError, match="task must be one of"):
        JudgeTagger(ScriptedClient(lambda p, q: ""), "mood")


def test_likelihood_tagger_takes_the_judges_habit_out():
    """The judge always likes "good"; against its habit, "poor" rises most for a poor query."""

    def score(prompt, label):
        habit = 2.0 if label.startswith("good") else 0.0
        asked = prompt.messages[0].text
        return [habit + (1.5 if label.startswith("poor") and "mumble" in asked else 0.0)] * 2

    llm = ScriptedClient(lambda prompt, params: "", score=score)
    tagged = LikelihoodTagger(llm, "quality").tag(["mumble"])[0]
    assert tagged["input_quality"] == "poor"
    assert sum(tagged["input_quality_probs"].values()) == pytest.approx(1.0)
    raw = LikelihoodTagger(llm, "quality", calibrate=False).tag(["mumble"])[0]
    assert raw["input_quality"] == "good"


def test_guard_reads_its_first_word():
    replies = iter(["safe", "unsafe\nS2", "hm"])
    guard = GuardTagger(ScriptedClient(lambda prompt, params: next(replies)))
    assert [t["llama_guard_2"] for t in guard.tag(["a", "b", "c"])] == ["safe", "unsafe", None]


def test_language_tagger_names_the_package_it_needs():
    import importlib.util

    if importlib.util.find_spec("lingua"):
        assert LanguageTagger().tag(["This is an English sentence."]) == [{"language": "EN"}]
    else:
        with pytest.raises(UserError, match="lingua-language-detector"):
            LanguageTagger()


def test_likelihood_reward_prefers_the_fitting_answer():
    def score(prompt, text):
        return [-1.0 if text in prompt.messages[0].text else -3.0]

    reward = LikelihoodReward(ScriptedClient(lambda p, q: "", score=score))
    fitting, other, blank = reward(["say red", "say red", "say red"], ["red", "blue", " "])
    assert fitting > other > blank
    mixed = reward(["say red", "say blue", "say red"], ["red", "red", "blue"])
    apart = [reward([q], [a])[0] for q, a in (("say red", "red"), ("say blue", "red"))]
    assert mixed == [*apart, other], "the order of questions changes no reward"
    assert reward(["q"], [" "]) == [blank]


def test_rules_about_queries():
    assert is_request("Please help")
    assert is_request("It rains. Or does it?")
    assert not is_request("The weather was fine.")
    assert is_mathematical("Solve 2 + 3")
    assert not is_mathematical("Tell me a story about a dog")
    assert rule_tag("Write a Python function") == "Coding & Debugging"
    assert rule_tag("blah") == "Others"
    assert distinct_2(["a b a b"]) == pytest.approx(2 / 3)
    assert distinct_2([]) == 0.0


@pytest.mark.parametrize("padded", [True, False])
def test_a_reward_does_not_depend_on_the_batch(tmp_path, chatml, padded):
    """Also of a checkpoint whose tokenizer has no padding token."""
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    from ritornello.methods.magpie.preferences import load_sequence_reward

    config = LlamaConfig(
        vocab_size=len(chatml),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForSequenceClassification(config).to(torch.bfloat16).save_pretrained(tmp_path)
    chatml.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings["pad_token"] = "<|im_start|>" if padded else None
    file.write_text(json.dumps(settings))
    reward = load_sequence_reward(str(tmp_path), device="cpu")
    asked, answers = ["Why?", "What is that?"], ["So.", "A much longer answer to the question."]
    together = reward(asked, answers)
    alone = [reward([q], [a])[0] for q, a in zip(asked, answers, strict=True)]
    assert together == pytest.approx(alone, abs=2e-2)
    assert together[0] != together[1]
    with pytest.raises(UserError, match="there is no folder"):
        load_sequence_reward("./nowhere", device="cpu")
