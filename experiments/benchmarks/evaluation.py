"""The evaluation core: its overhead, its intervals, and its records on disk."""

import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ritornello.common.chat import GenerationParams, Message, ScriptedClient, Text
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

    quiz = _Quiz(2000, scored=True)
    folder = tempfile.mkdtemp(prefix="evaluation-")
    to_lm_eval_yaml(quiz, folder)
    manager = TaskManager(include_path=folder)
    client = ScriptedClient(lambda prompt, params: "A", score=lambda prompt, text: (-1.0,))

    def peer() -> None:
        lm_eval.simple_evaluate(
            "dummy", tasks=["quiz"], task_manager=manager, bootstrap_iters=0, log_samples=False
        )

    return Benchmark(
        "2,000 scored questions, scripted model",
        ours=lambda: evaluate(quiz, client),
        peer=peer,
        peer_name="lm-evaluation-harness, dummy model",
        target=3.0,
    )


def _records() -> Benchmark:
    """Finished records on disk after every block, against one pickle rewritten whole."""
    quiz = _Quiz(2000)
    client = ScriptedClient(lambda prompt, params: "A")
    folder = tempfile.TemporaryDirectory(prefix="evaluation-")
    runs = iter(range(10**9))

    def ours() -> int:
        path = Path(folder.name) / f"{next(runs)}.jsonl"
        return len(evaluate(quiz, client, journal=path, block=10))

    def peer() -> int:
        known: dict[str, object] = {}
        samples = quiz.samples()
        for start in range(0, len(samples), 10):
            block = samples[start : start + 10]
            queries = [quiz.render(sample) for sample in block]
            answers = client.generate([q.prompt for q in queries], queries[0].params)
            for sample, completion in zip(block, answers, strict=True):
                answer = quiz.parse(sample, completion)["ours"]
                known[sample.id] = (completion, answer, quiz.score(sample, answer))
            with (Path(folder.name) / "known.pkl").open("wb") as file:
                pickle.dump(known, file)
        return len(known)

    return Benchmark(
        "2,000 answers kept on disk by tens",
        ours=ours,
        peer=peer,
        peer_name="one pickle written whole every ten answers, as VLMEvalKit",
        agree=np.testing.assert_equal,
    )


def _bootstrap() -> Benchmark:
    rng = np.random.default_rng(0)
    scores = rng.integers(2, size=11_698).astype(float)
    clusters = rng.integers(3000, size=11_698)
    members = [np.flatnonzero(clusters == c) for c in range(3000)]
    members = [rows for rows in members if len(rows)]
    resamples = 100

    def peer() -> tuple[float, ...]:
        means = []
        for _ in range(resamples):
            drawn = rng.integers(len(members), size=len(members))
            means.append(np.concatenate([scores[members[i]] for i in drawn]).mean())
        low, high = np.quantile(means, [0.025, 0.975])
        return float(scores.mean()), float(low), float(high)

    return Benchmark(
        f"clustered interval of 11,698 questions, {resamples} resamples",
        ours=lambda: cluster_bootstrap(scores, clusters, resamples=resamples),
        peer=peer,
        peer_name="gathering the clusters of each resample, as inspect-ai",
        target=20.0,
        agree=partial(np.testing.assert_allclose, atol=0.01),
    )
