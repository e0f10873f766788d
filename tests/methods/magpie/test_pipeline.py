"""The whole chain: states, schema, exact resume, refusal of a foreign folder."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ritornello.common.chat import Completion, ScriptedClient
from ritornello.methods.magpie import MagpieConfig, MagpiePipeline

CONFIG = MagpieConfig(
    n=12,
    max_new_tokens=16,
    response_tokens=16,
    family="llama-3",
    tags=("quality", "difficulty"),
    tagger="likelihood",
    filter="notebook",
    preference_k=2,
    chunk=4,
)
UNFILTERED = replace(CONFIG, filter="none")
QUERIES = ["Why is it {}?", "Name {} trees.\nAnswer: oak", "", "## {}", "cut {}", "Why is it {}?"]


class LetterEncoder:
    """Letter counts: equal texts, equal vectors."""

    def encode(self, sentences):
        return np.array(
            [[s.count(c) for c in "abcdefghijklmnopqrstuvwxyz0123456789"] for s in sentences],
            dtype=np.float32,
        )


def reply(prompt, params):
    if prompt.text.endswith("user\n"):
        number = prompt.sample
        text = QUERIES[number % 6].format(0 if number % 6 == 5 else number)
        if text.startswith("cut"):
            return Completion(text, "length")
        return Completion(text, "stop", stop_reason="<|im_end|>")
    return f"answer {prompt.sample} to {prompt.text[-40:]}"


def score(prompt, text):
    return [-1.0 - 0.1 * (hash_of(prompt.content(), text) % 7)] * 2


def hash_of(*content):
    return sum(map(ord, json.dumps(content)))


def pipeline(chatml, llm=None, config=CONFIG):
    return MagpiePipeline(
        config,
        llm=llm or ScriptedClient(reply, score=score),
        tokenizer=chatml,
        encoder=LetterEncoder(),
        reward=lambda asked, answers: [float(hash_of(a) % 5) for a in answers],
    )


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_rows_go_through_their_states(chatml, tmp_path):
    stats = pipeline(chatml).run(tmp_path)
    raw = [json.loads(line) for line in (tmp_path / "raw.jsonl").open()]
    reasons = [row["drop_reason"] for row in raw]
    assert reasons == [None, None, "empty", "heading only", "length-truncated", None] * 2
    assert raw[1]["instruction"] == "Name 1 trees."
    assert raw[1]["instruction_sanitize_class_num"] == 4
    assert stats["dropped"] == {"empty": 2, "heading only": 2, "length-truncated": 2}
    assert stats["kept"] == 6
    # rows 0, 5 and 11 ask the same: two of them are repeats of the first
    assert stats["repeats"] == 3


def test_a_single_row_makes_valid_json(chatml, tmp_path):
    def refuse(constant):
        raise ValueError(constant)

    pipeline(chatml, config=replace(UNFILTERED, n=1)).run(tmp_path)
    row = json.loads((tmp_path / "final.jsonl").read_text(), parse_constant=refuse)
    assert row["min_neighbor_distance"] is None
    json.loads((tmp_path / "stats.json").read_text(), parse_constant=refuse)


def test_final_rows_hold_text_origin_and_tags(chatml, tmp_path):
    pipeline(chatml, config=UNFILTERED).run(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "final.jsonl").open()]
    assert len({row["id"] for row in rows}) == len(rows) == 6
    for row in rows:
        assert row["gen_input_configs"].keys() == {
            "temperature",
            "top_p",
            "input_generator",
            "seed",
        }
        assert row["gen_response_configs"]["temperature"] == 0
        assert row["response"].startswith("answer 0")
        assert {"input_quality", "difficulty", "instruct_reward", "created"} <= row.keys()
        assert {"min_neighbor_distance", "repeat_count", "pre_query_template"} <= row.keys()
    pairs = [json.loads(line) for line in (tmp_path / "preferences.jsonl").open()]
    assert all(len(pair["rewards_armorm"]) == 2 for pair in pairs)
    card = (tmp_path / "README.md").read_text()
    assert "inherits the terms" in card


@pytest.mark.parametrize("death", [2, 7, 13, 20])
def test_an_interrupted_run_continues_to_the_same_bytes(chatml, tmp_path, death):
    calls = 0

    def mortal(prompt, params):
        nonlocal calls
        calls += 1
        if calls == death:
            raise KeyboardInterrupt
        return reply(prompt, params)

    pipeline(chatml, config=UNFILTERED).run(tmp_path / "whole")
    llm = ScriptedClient(mortal, score=score)
    with pytest.raises(KeyboardInterrupt):
        pipeline(chatml, llm, UNFILTERED).run(tmp_path / "resumed")
    pipeline(chatml, llm, UNFILTERED).run(tmp_path / "resumed")
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")
    whole = ScriptedClient(reply, score=score)
    pipeline(chatml, whole, UNFILTERED).run(tmp_path / "again")
    assert calls == len(whole.calls) + 1, "only the interrupted request is asked twice"


def test_a_finished_run_asks_nothing_again(chatml, tmp_path):
    pipeline(chatml).run(tmp_path)
    before = files(tmp_path)
    llm = ScriptedClient(reply, score=score)
    pipeline(chatml, llm).run(tmp_path)
    assert llm.calls == []
    assert files(tmp_path) == before


def test_a_folder_of_another_run_is_refused(chatml, tmp_path):
    pipeline(chatml).run(tmp_path)
    other = replace(CONFIG, seed=1)
    with pytest.raises(ValueError, match="another seed"):
        pipeline(chatml, config=other).run(tmp_path)


def test_ids_depend_on_what_determines_the_row(chatml):
    ids = {pipeline(chatml).row_id(i) for i in range(3)}
    warmer = replace(CONFIG, temperature=1.1)
    assert len(ids | {pipeline(chatml, config=warmer).row_id(0)}) == 4
    longer = replace(CONFIG, n=99)
    assert pipeline(chatml, config=longer).row_id(0) in ids


def test_nothing_kept_is_an_empty_data_set(chatml, tmp_path):
    silent = ScriptedClient(lambda prompt, params: Completion("", "length"), score=score)
    with pytest.warns(UserWarning, match="none of 12 sampled queries ended by itself"):
        stats = pipeline(chatml, silent).run(tmp_path)
    assert (stats["kept"], stats["final"]) == (0, 0)


def test_what_cannot_be_made_is_told_before_anything_is_sampled(chatml):
    llm = ScriptedClient(reply, score=score)
    parts = {"llm": llm, "tokenizer": chatml, "encoder": LetterEncoder()}
    with pytest.raises(ValueError, match=r"filter='notebook'.*instruct_reward"):
        MagpiePipeline(MagpieConfig(), **parts)
    with pytest.raises(ValueError, match=r"filter='air'.*reward_difference"):
        MagpiePipeline(MagpieConfig(filter="air"), reward=lambda a, b: [], **parts)
    with pytest.raises(ValueError, match=r"filter='pro'.*input_quality"):
        MagpiePipeline(MagpieConfig(filter="pro", tags=()), reward=lambda a, b: [], **parts)
    with pytest.raises(ValueError, match="needs a reward"):
        MagpiePipeline(MagpieConfig(filter="none", preference_k=2), **parts)
    with pytest.raises(ValueError, match="belong together"):
        MagpiePipeline(MagpieConfig(filter="none"), llm=llm)
    assert llm.calls == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("tags", ("mood",)),
        ("tagger", "guess"),
        ("filter", "strict"),
        ("preference_k", 1),
    ],
)
def test_bad_settings_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        MagpieConfig(**{field: value})


def test_failed_requests_leave_no_row_and_no_answer(chatml, tmp_path):
    """An endpoint tolerates a few failures; they must not become training data."""

    def failing(prompt, params):
        answer = reply(prompt, params)
        if prompt.text.endswith("user\n"):
            return Completion("", "error", error="500") if prompt.sample == 6 else answer
        if params.temperature == 0 and "it 0?" in prompt.text:
            return Completion("", "content_filter")
        return Completion("", "error", error="500") if prompt.sample == 1 else answer

    config = replace(UNFILTERED, preference_k=3)
    pipeline(chatml, ScriptedClient(failing, score=score), config).run(tmp_path)
    final = [json.loads(line) for line in (tmp_path / "final.jsonl").open()]
    assert sorted(row["index"] for row in final) == [1, 7]
    assert all(row["response"] for row in final)
    pairs = [json.loads(line) for line in (tmp_path / "preferences.jsonl").open()]
    assert all(len(pair["responses"]) == 2 and all(pair["responses"]) for pair in pairs)
