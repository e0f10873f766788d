"""The evaluation core: its overhead, its intervals, and its records on disk."""

import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ritornello.common.chat import (
    AnswerStore,
    GenerationParams,
    Journal,
    Message,
    ScriptedClient,
    Text,
)
from ritornello.common.chat.journal import read_records
from ritornello.common.evaluation import (
    Answer,
    Choice,
    ChoiceTarget,
    Query,
    Sample,
    Score,
    evaluate,
)
from ritornello.common.evaluation.export import to_lm_eval_yaml
from ritornello.common.evaluation.options import OptionParser, render_options
from ritornello.common.statistics.evaluation import cluster_bootstrap
from ritornello.experiments.benchmarks import Benchmark

_QUESTIONS = 10_000
_ANSWERS, _ANSWER_BYTES, _WRITTEN_EVERY = 10_000, 200, 50
_RESAMPLES_PER_TIMED = 100


def benchmarks() -> Iterator[Benchmark]:
    """Overhead of a question, records on disk, clustered intervals."""
    if find_spec("lm_eval") is not None:
        yield _overhead()
    yield _records()
    yield _bootstrap()


@dataclass
class _Quiz:
    """Questions of four options that cost nothing to answer."""

    number: int
    scored: bool = False
    name: str = "quiz"

    def samples(self) -> list[Sample]:
        choices = tuple(Choice.of(text) for text in ("red", "blue", "green", "yellow"))
        return [
            Sample(f"q{i}", (Text(f"Question {i}?\n"),), choices, ChoiceTarget.of(i % 4))
            for i in range(self.number)
        ]

    def render(self, sample: Sample) -> Query:
        message = Message.user((*sample.parts, *render_options(sample.choices)))
        if self.scored:
            return Query([message], continuations=tuple(f" {c.text}" for c in sample.choices))
        return Query([message], GenerationParams(max_tokens=8))

    def parse(self, sample: Sample, response) -> dict[str, Answer]:
        if self.scored:
            return {"ours": Answer(response.best)}
        return {"ours": _PARSE(response.text)}

    def score(self, sample: Sample, answer: Answer) -> Score:
        return Score(float(answer.value in sample.gold))


_PARSE = OptionParser("ABCD", ("red", "blue", "green", "yellow"))


def _overhead() -> Benchmark:
    """A scripted model in both harnesses: everything but the model's own time."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    quiz = _Quiz(_QUESTIONS, scored=True)
    folder = tempfile.mkdtemp(prefix="evaluation-")
    to_lm_eval_yaml(quiz, folder)
    manager = TaskManager(include_path=folder)
    client = ScriptedClient(lambda prompt, params: "A", score=lambda prompt, text: (-1.0,))

    def peer() -> None:
        lm_eval.simple_evaluate(
            "dummy", tasks=["quiz"], task_manager=manager, bootstrap_iters=0, log_samples=False
        )

    return Benchmark(
        f"{_QUESTIONS:,} scored questions, scripted model",
        ours=lambda: evaluate(quiz, client),
        peer=peer,
        peer_name="lm-evaluation-harness, dummy model",
        target=3.0,
    )


def _records() -> Benchmark:
    """Answers on disk one by one: cache and journal, against one pickle written whole each time.

    The pickle grows, so its writes are timed at evenly spread sizes: one answer in fifty.
    """
    texts = [f"{i:08d} ".ljust(_ANSWER_BYTES, "x") for i in range(_ANSWERS)]
    folder = tempfile.TemporaryDirectory(prefix="evaluation-")
    runs = iter(range(10**9))

    def ours() -> list[str]:
        place = Path(folder.name) / str(next(runs))
        store = AnswerStore(place / "answers.sqlite")
        with Journal(place / "records.jsonl") as journal:
            for index, text in enumerate(texts):
                store.put(index.to_bytes(32), {"text": text})
                journal.append({"sample": index, "text": text})
        store.close()
        return [str(record["text"]) for record in read_records(place / "records.jsonl")]

    def peer() -> list[str]:
        known: dict[int, str] = {}
        file = Path(folder.name) / "known.pkl"
        for index, text in enumerate(texts):
            known[index] = text
            if index % _WRITTEN_EVERY == _WRITTEN_EVERY - 1:
                file.write_bytes(pickle.dumps(known))
        return list(pickle.loads(file.read_bytes()).values())

    return Benchmark(
        f"{_ANSWERS:,} answers of {_ANSWER_BYTES} bytes kept on disk one by one",
        ours=ours,
        peer=peer,
        peer_name=f"pickle written whole each time, as VLMEvalKit (1 in {_WRITTEN_EVERY} timed)",
        target=50.0,
        agree=np.testing.assert_equal,
        peer_share=1 / _WRITTEN_EVERY,
    )


def _bootstrap() -> Benchmark:
    rng = np.random.default_rng(0)
    scores = rng.integers(2, size=11_698).astype(float)
    clusters = rng.integers(3000, size=11_698)
    members = [np.flatnonzero(clusters == c) for c in range(3000)]
    members = [rows for rows in members if len(rows)]
    resamples = 10_000

    def peer() -> tuple[float, ...]:
        means = []
        for _ in range(resamples // _RESAMPLES_PER_TIMED):
            drawn = rng.integers(len(members), size=len(members))
            means.append(np.concatenate([scores[members[i]] for i in drawn]).mean())
        low, high = np.quantile(means, [0.025, 0.975])
        return float(scores.mean()), float(low), float(high)

    return Benchmark(
        f"clustered interval of 11,698 questions, {resamples} resamples",
        ours=lambda: cluster_bootstrap(scores, clusters, resamples=resamples),
        peer=peer,
        peer_name="gathering the clusters of each resample, as inspect-ai (1 in 100 timed)",
        target=20.0,
        agree=partial(np.testing.assert_allclose, atol=0.01),
        peer_share=1 / _RESAMPLES_PER_TIMED,
    )
