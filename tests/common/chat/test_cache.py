"""Nothing is asked twice, keys follow what the answer depends on, journals survive a kill."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from ritornello.common.chat import (
    AnswerStore,
    CachedClient,
    ChatError,
    Completion,
    GenerationParams,
    Journal,
    Message,
    Prompt,
    ReplayClient,
    RunLockedError,
    ScriptedClient,
    read_records,
    replicates,
)
from ritornello.common.chat.cache import generation_key

SAMPLED = GenerationParams(temperature=1.0)


def counting(**kwargs):
    return ScriptedClient(
        lambda prompt, params: f"{prompt.text}#{prompt.sample}", model_id="m", **kwargs
    )


def test_known_answers_are_not_asked_again(tmp_path):
    inner = counting()
    client = CachedClient(inner, tmp_path / "cache.sqlite")
    prompts = [*replicates("a", 3), "b", "b"]
    first = client.generate(prompts, SAMPLED)
    assert len(inner.calls) == 4, "equal requests are asked once"
    again = CachedClient(inner, tmp_path / "cache.sqlite").generate([*prompts, "c"], SAMPLED)
    assert len(inner.calls) == 5
    assert [a.text for a in again[:5]] == [a.text for a in first]
    assert [a.attempts for a in again] == [0] * 5 + [1]


def test_an_interrupted_call_keeps_what_had_arrived(tmp_path):
    def reply(prompt, params):
        if prompt.text == "bad" and not healthy:
            raise KeyboardInterrupt
        return prompt.text

    healthy = False
    inner = ScriptedClient(reply)
    client = CachedClient(inner, tmp_path / "cache.sqlite")
    with pytest.raises(KeyboardInterrupt):
        client.generate(["a", "b", "bad", "c"], SAMPLED)
    healthy = True
    assert [a.text for a in client.generate(["a", "b", "bad", "c"], SAMPLED)] == [
        "a",
        "b",
        "bad",
        "c",
    ]
    assert [p.text for p in inner.calls] == ["a", "b", "bad", "bad", "c"]


def test_failures_are_asked_again_and_refusals_are_not(tmp_path):
    reasons = {"error": "error", "refused": "content_filter"}
    inner = ScriptedClient(lambda prompt, params: Completion("", reasons[prompt.text]))
    client = CachedClient(inner, tmp_path / "cache.sqlite")
    for _ in range(2):
        client.generate(["error", "refused"], SAMPLED)
    assert [p.text for p in inner.calls] == ["error", "refused", "error"]


def test_key_changes_exactly_with_what_the_answer_depends_on():
    prompt, params = Prompt((Message.user("hi"),)), GenerationParams(temperature=0.5)
    base = generation_key("m", prompt, params)
    changed = [
        generation_key("n", prompt, params),
        generation_key("m", Prompt(text="hi"), params),
        generation_key("m", replace(prompt, prefill="x"), params),
        generation_key("m", replace(prompt, sample=1), params),
        *(
            generation_key("m", prompt, replace(params, **{name: value}))
            for name, value in {
                "max_tokens": 1,
                "temperature": 0.6,
                "top_p": 0.5,
                "top_k": 3,
                "stop": ("x",),
                "stop_token_ids": (3,),
                "seed": 1,
                "logprobs": 0,
                "skip_special_tokens": False,
                "first_token_temperature": 1.2,
                "banned_first_token_ids": (1,),
            }.items()
        ),
    ]
    assert len({base, *changed}) == len(changed) + 1
    assert base == generation_key("m", prompt, replace(params, temperature=0.5, top_p=1))
    greedy = GenerationParams()
    assert generation_key("m", prompt, greedy) == generation_key(
        "m", replace(prompt, sample=4), replace(greedy, seed=9, top_p=0.3)
    )


def test_scores_are_cached(tmp_path):
    asked = []
    inner = ScriptedClient(
        lambda prompt, params: "",
        score=lambda prompt, text: asked.append(text) or [-float(len(text))],
    )
    client = CachedClient(inner, tmp_path / "cache.sqlite")
    first = client.score_continuations(["p", "q"], [["a", "bb"], ["ccc"]])
    assert client.score_continuations(["q", "p"], [["ccc"], ["a", "bb"]]) == first[::-1]
    assert asked == ["a", "bb", "ccc"]


def test_replay_answers_from_the_store_alone(tmp_path):
    store = AnswerStore(tmp_path / "cache.sqlite")
    CachedClient(counting(), store).generate(["a"], SAMPLED)
    replay = CachedClient(ReplayClient("m"), store)
    assert replay.generate(["a"], SAMPLED)[0].text == "a#0"
    with pytest.raises(ChatError, match="1 answers of m are not in the store"):
        replay.generate(["a", "b"], SAMPLED)


def test_journal_drops_a_torn_last_line_and_goes_on(tmp_path):
    path = tmp_path / "log.jsonl"
    with Journal(path) as journal:
        journal.append({"n": 1})
    with path.open("ab") as file:
        file.write(b'{"n": 2, "te')
    assert list(read_records(path)) == [{"n": 1}]
    with Journal(path) as journal:
        journal.append({"n": 3})
        assert list(journal.records()) == [{"n": 1}, {"n": 3}]


def test_two_writers_of_one_journal_are_refused(tmp_path):
    with Journal(tmp_path / "log.jsonl"), pytest.raises(RunLockedError, match=r"log\.jsonl"):
        Journal(tmp_path / "log.jsonl")
    Journal(tmp_path / "log.jsonl").close()


def test_a_killed_process_loses_only_what_was_in_flight(tmp_path):
    """SIGKILL in the middle of a generation; the resumed call asks only for the rest."""
    script = tmp_path / "ask.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, time
            from ritornello.common.chat import (
                CachedClient, GenerationParams, Journal, ScriptedClient)

            def reply(prompt, params):
                if prompt.text == "7" and sys.argv[2] == "die":
                    print("now", flush=True)
                    time.sleep(60)
                return prompt.text

            folder = sys.argv[1]
            inner = ScriptedClient(reply)
            journal = Journal(folder + "/log.jsonl")
            client = CachedClient(inner, folder + "/cache.sqlite", journal=journal)
            answers = client.generate(list(map(str, range(12))), GenerationParams())
            print(len(inner.calls), " ".join(answer.text for answer in answers))
            """
        )
    )
    command = [sys.executable, str(script), str(tmp_path)]
    process = subprocess.Popen([*command, "die"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"now\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    output = subprocess.run([*command, "live"], capture_output=True, check=True, text=True).stdout
    assert output.split() == ["5", *map(str, range(12))]
    asked = [json.loads(line)["prompt"][0] for line in (tmp_path / "log.jsonl").open()]
    assert asked == list(map(str, range(12)))
