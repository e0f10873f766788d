"""Asking, reading and scoring; what is finished survives, and is not asked again."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from quiz import Quiz

from ritornello.common.chat import (
    CachedClient,
    Completion,
    Flaky,
    GenerationParams,
    Message,
    RunLockedError,
    ScriptedClient,
)
from ritornello.common.chat.journal import Journal
from ritornello.common.evaluation import (
    Answer,
    Query,
    Record,
    RunMismatchError,
    Sample,
    SampleError,
    Score,
    evaluate,
    load_records,
    play,
    rescore,
)
from ritornello.common.evaluation.baselines import oracle, scripted
from ritornello.common.evaluation.report import report_rows


def values(records, reading="ours"):
    return [record.scores[reading].value for record in records]


def test_records_come_in_the_order_of_the_samples_with_both_readings():
    quiz = Quiz()
    records = evaluate(quiz, scripted(quiz, oracle, name="oracle"), block=5)
    assert [record.sample for record in records] == [sample.id for sample in quiz.samples()]
    assert values(records) == values(records, "official") == [1.0] * 12
    assert records[1].labels == {"parity": 1}


def test_scored_tasks_get_the_scores_of_their_continuations():
    quiz = Quiz(scored=True)
    assert values(evaluate(quiz, scripted(quiz, oracle, name="oracle"))) == [1.0] * 12


@pytest.mark.parametrize(
    ("completion", "status", "counted"),
    [
        (Completion("I would rather not", "content_filter"), "refused", True),
        (Completion("", "error", error="reset"), "error", False),
        (Completion("Well, let me see", "length"), "truncated", True),
        (Completion("B", "length"), "ok", True),
        (Completion("Well, let me see"), "unparsed", True),
    ],
)
def test_what_went_wrong_is_a_status_and_never_a_letter(completion, status, counted):
    (record,) = evaluate(Quiz(number=1), ScriptedClient(lambda prompt, params: completion))
    assert record.answers["ours"].status == status
    assert (record.answers["ours"].value is None) == (status != "ok")
    assert record.scores["ours"] == Score(0.0, counted)


def test_an_answer_has_a_value_exactly_when_it_is_ok():
    with pytest.raises(ValueError, match="value exactly when"):
        Answer(None)
    with pytest.raises(ValueError, match="value exactly when"):
        Answer(1, "unparsed")


def test_queries_with_different_settings_are_sent_apart_and_come_back_in_order():
    class Mixed(Quiz):
        def render(self, sample):
            tokens = 10 + int(sample.id[1:]) % 3
            return Query([Message.user(sample.id)], GenerationParams(max_tokens=tokens))

        def parse(self, sample, response):
            return {"ours": Answer(response.text)}

        def score(self, sample, answer):
            return Score(float(answer.value == f"{sample.id} {10 + int(sample.id[1:]) % 3}"))

    client = ScriptedClient(lambda prompt, params: f"{prompt.messages[0].text} {params.max_tokens}")
    assert values(evaluate(Mixed(), client)) == [1.0] * 12


def test_records_survive_their_journal_form():
    for scored in (False, True):
        quiz = Quiz(scored=scored)
        for record in evaluate(quiz, scripted(quiz, oracle, name="oracle")):
            assert Record.from_json(record.to_json()) == record


def test_a_second_call_asks_only_what_failed(tmp_path):
    quiz, journal = Quiz(number=40), tmp_path / "records.jsonl"
    inner = scripted(quiz, oracle, name="oracle")
    first = evaluate(quiz, Flaky(inner, 0.4), journal=journal)
    failed = [record for record in first if not record.final]
    assert 5 < len(failed) < 35
    assert len(inner.calls) == 40 - len(failed)
    assert values(evaluate(quiz, inner, journal=journal)) == [1.0] * 40
    assert len(inner.calls) == 40
    evaluate(quiz, inner, journal=journal)
    assert len(inner.calls) == 40


def test_a_torn_last_line_is_asked_again(tmp_path):
    quiz, journal = Quiz(), tmp_path / "records.jsonl"
    client = scripted(quiz, oracle, name="oracle")
    whole = evaluate(quiz, client, journal=journal)
    journal.write_bytes(journal.read_bytes()[:-20])
    assert evaluate(quiz, client, journal=journal) == whole
    assert len(client.calls) == 13


@pytest.mark.parametrize("kind", ["task", "model", "samples", "prompt"])
def test_a_journal_of_another_run_is_refused(tmp_path, kind):
    journal = tmp_path / "records.jsonl"
    quiz = Quiz()
    evaluate(quiz, scripted(quiz, oracle, name="oracle"), journal=journal)
    other = {
        "task": Quiz(name="another"),
        "model": quiz,
        "samples": Quiz(number=13),
        "prompt": type("Terse", (Quiz,), {"render": lambda s, x: Query([Message.user(x.id)])})(),
    }[kind]
    name = "other" if kind == "model" else "oracle"
    with pytest.raises(RunMismatchError, match="another path"):
        evaluate(other, scripted(other, oracle, name=name), journal=journal)
    # the journal is let go of: the right run goes on
    evaluate(quiz, scripted(quiz, oracle, name="oracle"), journal=journal)


def test_two_runs_cannot_write_one_journal(tmp_path):
    quiz = Quiz()
    with Journal(tmp_path / "records.jsonl"), pytest.raises(RunLockedError):
        evaluate(quiz, scripted(quiz, oracle, name="oracle"), journal=tmp_path / "records.jsonl")


SLOW_RUN = """
import sys, time
sys.path.insert(0, sys.argv[2])
from quiz import Quiz
from ritornello.common.chat import ScriptedClient
from ritornello.common.evaluation import evaluate
def reply(prompt, params):
    time.sleep(0.02)
    return "A"
evaluate(Quiz(number=200), ScriptedClient(reply, model_id="a"), journal=sys.argv[1], block=1)
"""


def test_a_killed_run_goes_on_and_ends_as_an_unbroken_one(tmp_path):
    journal = tmp_path / "records.jsonl"
    run = subprocess.Popen(
        [sys.executable, "-c", SLOW_RUN, str(journal), str(Path(__file__).parent)],
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if journal.exists() and journal.read_bytes().count(b"\n") > 20:
            break
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.wait()
    finished = journal.read_bytes().count(b"\n") - 1
    assert 20 <= finished < 200
    client = ScriptedClient(lambda prompt, params: "A", model_id="a")
    resumed = evaluate(Quiz(number=200), client, journal=journal)
    assert len(client.calls) == 200 - finished
    unbroken = evaluate(Quiz(number=200), ScriptedClient(lambda p, q: "A", model_id="a"))
    assert [r.to_json() for r in resumed] == [r.to_json() for r in unbroken]


def test_a_report_of_a_journal_is_right_while_the_journal_is_written(tmp_path):
    quiz, path = Quiz(number=40), tmp_path / "records.jsonl"
    inner = scripted(quiz, oracle, name="oracle")
    seen = []

    def reply(prompt, params):
        if path.exists() and path.read_bytes().count(b"\n") > 10:
            seen.append(report_rows(load_records(path), total=40)[0])
        return inner.generate([prompt], params)[0]

    whole = evaluate(quiz, ScriptedClient(reply), journal=path, block=5)
    assert [row.n for row in seen[::5]] == list(range(10, 40, 5))
    assert {row.ours for row in seen} == {1.0}
    assert {row.n_total for row in seen} == {40}
    assert load_records(path) == whole


def test_a_question_asked_again_is_reported_once(tmp_path):
    quiz, path = Quiz(number=40), tmp_path / "records.jsonl"
    inner = scripted(quiz, oracle, name="oracle")
    evaluate(quiz, Flaky(inner, 0.4), journal=path)
    assert not all(record.final for record in load_records(path))
    evaluate(quiz, inner, journal=path)
    assert len(load_records(path)) == 40
    assert all(record.final for record in load_records(path))


def test_known_responses_are_scored_again_without_a_model():
    quiz = Quiz()
    records = evaluate(quiz, scripted(quiz, oracle, name="oracle"))
    strict = type("Strict", (Quiz,), {"score": lambda self, sample, answer: Score(0.5)})()
    assert values(rescore(strict, records)) == [0.5] * 12
    with pytest.raises(SampleError, match="no sample 'q11'"):
        rescore(Quiz(number=3), records[-1:])


def test_duplicate_ids_are_told():
    class Twice(Quiz):
        def samples(self):
            return [*super().samples(), *super().samples()]

    with pytest.raises(SampleError, match="two samples have the id 'q0'"):
        evaluate(Twice(), ScriptedClient(lambda prompt, params: "A"))


@dataclass
class Countdown:
    """An environment that asks as often as the sample says."""

    number: int = 5
    name: str = "countdown"

    def samples(self):
        return [Sample(f"s{i}", meta={"turns": i}) for i in range(self.number)]

    def reset(self, sample):
        return (sample.id, sample.meta["turns"], ())

    def finished(self, state):
        return state[1] == 0

    def render(self, state):
        return Query([Message.user(f"{state[0]} has {state[1]} left")])

    def step(self, state, completion):
        return (state[0], state[1] - 1, (*state[2], completion.text))

    def answer(self, state):
        return {"ours": Answer(list(state[2]))}

    def score(self, sample, answer):
        return Score(float(len(answer.value)), parts={"turns": sample.meta["turns"]})


def echo(prompt, params):
    return prompt.messages[-1].text.split()[2]


def test_episodes_advance_together_and_end_when_they_end():
    batches = []

    class Watched(ScriptedClient):
        def generate(self, prompts, params, **kwargs):
            batches.append(len(prompts))
            return super().generate(prompts, params, **kwargs)

    records = play(Countdown(), Watched(echo))
    assert values(records) == [0, 1, 2, 3, 4]
    assert batches == [4, 3, 2, 1]
    assert records[3].answers["ours"].value == records[3].response == ["3", "2", "1"]


def test_a_failed_request_ends_its_episode_alone_and_is_played_again(tmp_path):
    def fails(prompt, params):
        text = prompt.messages[-1].text
        return (
            Completion("", "error", error="x") if text == "s3 has 2 left" else echo(prompt, params)
        )

    journal = tmp_path / "episodes.jsonl"
    records = play(Countdown(), ScriptedClient(fails), journal=journal)
    assert [record.final for record in records] == [True, True, True, False, True]
    client = ScriptedClient(echo)
    assert values(play(Countdown(), client, journal=journal)) == [0, 1, 2, 3, 4]
    assert len(client.calls) == 3


def test_a_half_played_episode_is_replayed_from_the_cache(tmp_path):
    asked = 0

    def breaks(prompt, params):
        nonlocal asked
        asked += 1
        if asked == 6:
            raise KeyboardInterrupt
        return echo(prompt, params)

    with pytest.raises(KeyboardInterrupt):
        play(Countdown(), CachedClient(ScriptedClient(breaks), tmp_path / "cache.sqlite"))
    client = ScriptedClient(echo)
    records = play(Countdown(), CachedClient(client, tmp_path / "cache.sqlite"))
    assert values(records) == [0, 1, 2, 3, 4]
    assert len(client.calls) == 10 - 5
