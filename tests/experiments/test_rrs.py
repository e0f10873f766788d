"""RRS's experiment: one model in memory, zero-shot tasks by the harness, kills at any moment."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import weakref
from functools import partial
from importlib.util import find_spec

import pytest
import torch

from ritornello.common.errors import UserError
from ritornello.common.evaluation.multiple_choice import Question, score_choices
from ritornello.common.models import tiny_causal_lm
from ritornello.experiments.rrs import zero_shot
from ritornello.experiments.rrs.experiment import ChannelOutliers, Perplexity
from ritornello.experiments.rrs.smoke import character_tokenizer
from ritornello.methods.rrs import RRSConfig, quantize_model


def test_parts_share_one_model_and_the_next_weights_replace_it():
    settings = {
        "model": partial(tiny_causal_lm, layers=1),
        "tokenizer": character_tokenizer,
        "text": lambda: "some text " * 40,
        "tokens": 8,
        "calibration_tokens": 8,
    }
    first, second = Perplexity(**settings), ChannelOutliers(**settings)
    plain = RRSConfig(w_bits=16, rotate=False, smooth="none")
    model = first.quantized(plain)
    assert second.quantized(RRSConfig(w_bits=16, rotate=False, a_bits=8)) is model
    other = Perplexity(**settings | {"model": partial(tiny_causal_lm, layers=2)})
    assert len(other.quantized(plain).model.layers) == 2
    gone = weakref.ref(first.quantized(plain))
    assert gone() is not model
    first.quantized(RRSConfig(w_bits=16))
    assert gone() is None


def test_an_absent_harness_is_one_message(monkeypatch):
    monkeypatch.setattr(zero_shot, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install 'lm_eval"):
        zero_shot.check_installed()


QUESTIONS = [
    Question("red is a", (" colour", " number", " place"), 0),
    Question("two is a", (" colour", " number"), 1),
    Question("here is a", (" place", " colour is a number"), 0),
    Question("a number is", (" here", " two"), 1),
]
TASK = """
task: toy_task
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list: [{metric: acc}, {metric: acc_norm}]
"""


@pytest.fixture
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = sorted({w for q in QUESTIONS for w in " ".join((q.context, *q.choices)).split()})
    known = {word: number for number, word in enumerate(["<unk>", "<s>", *words])}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", eos_token="<s>", bos_token="<s>"
    )


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm-evaluation-harness")
def test_the_harness_ranks_choices_as_our_own_scorer_does(tokenizer, tmp_path):
    data = tmp_path / "questions.jsonl"
    data.write_text("\n".join(json.dumps(q.__dict__) for q in QUESTIONS))
    (tmp_path / "toy_task.yaml").write_text(TASK.replace("FILE", str(data)))
    model = quantize_model(tiny_causal_lm(), RRSConfig(w_bits=16, a_bits=8))
    found = zero_shot.zero_shot_answers(model, tokenizer, "toy_task", task_folder=str(tmp_path))
    with torch.inference_mode():
        scores = score_choices(model, tokenizer, QUESTIONS, batch_size=1, max_tokens=64)
    assert found["accuracy"] == scores.accuracy.tolist()
    assert len(found["accuracy_norm"]) == len(QUESTIONS)
    with pytest.raises(UserError, match="'no_such_task' is not a task"):
        zero_shot.zero_shot_answers(model, tokenizer, "no_such_task", task_folder=str(tmp_path))
    zero_shot.check_tasks(["toy_task"], str(tmp_path))
    data.unlink()
    with pytest.raises(UserError, match="the data of task='toy_task'"):
        zero_shot.check_tasks(["toy_task"], str(tmp_path))


def test_a_text_that_is_too_short_is_told_before_the_first_cell():
    settings = {"model": tiny_causal_lm, "tokenizer": character_tokenizer, "text": lambda: "ab"}
    for windows, message in ((None, "fewer than tokens=8"), (1, "windows=1 of tokens=8")):
        with pytest.raises(UserError, match=message):
            Perplexity(**settings, tokens=8, windows=windows).prepare()


def start(folder):
    """Starts the real command, with a cache of its own: weights are rounded anew."""
    return subprocess.Popen(
        [sys.executable, "-m", "ritornello", "experiment=rrs/smoke"],
        cwd=folder,
        env=os.environ | {"RITORNELLO_CACHE": str(folder / "cache")},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_at_some_moment(process, folder, moments, number):
    """Two of three times shortly after a further cell was finished, else while starting up."""
    if number % 3 == 2:
        time.sleep(moments.uniform(0, 6))
    else:
        known = len(measured(folder))
        deadline = time.monotonic() + 120
        while len(measured(folder)) == known and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.3))
    assert process.poll() is None, "the run was over before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def measured(folder):
    """All values of all cells, but how long they took."""
    return {
        file.name: [
            {k: m[k] for k in ("metric", "value", "samples", "coordinates")}
            for m in json.loads(file.read_text())["record"]["measurements"]
            if m["unit"] != "s"
        ]
        for file in folder.glob("outputs/rrs/smoke/*/cells/*.json")
    }


@pytest.mark.slow
def test_ten_kills_at_random_moments_change_no_result(tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    for folder in (unbroken, broken):
        folder.mkdir()
    assert start(unbroken).wait() == 0
    moments = random.Random(0)
    for number in range(10):
        before = measured(broken)
        kill_at_some_moment(start(broken), broken, moments, number)
        assert before.items() <= measured(broken).items()
    assert start(broken).wait() == 0
    expected = measured(unbroken)
    assert len(expected) > 20
    assert measured(broken) == expected
