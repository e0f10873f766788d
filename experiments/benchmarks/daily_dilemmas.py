"""DailyDilemmas: preferences of all values, and the likelihoods of both labels."""

from collections.abc import Iterator

import numpy as np
import torch

from ritornello.common.evaluation import evaluate
from ritornello.common.evaluation.clients import smollm2_client
from ritornello.experiments.benchmarks import Benchmark
from ritornello.methods.daily_dilemmas import (
    DilemmaTask,
    load_values,
    make_synthetic_dilemmas,
    preference,
    written_dilemmas,
)
from ritornello.methods.daily_dilemmas.prompts import LABELS


def benchmarks() -> Iterator[Benchmark]:
    """All comparisons of DailyDilemmas."""
    yield _preferences()
    yield _likelihoods()


def _preferences() -> Benchmark:
    """136 actions; the peer scans a table row by row for each value, as the official helper does.

    The full set has 2,720 actions: the ratio there is larger still.
    """
    import pandas as pd

    dilemmas = make_synthetic_dilemmas(68, seed=0)
    rng = np.random.default_rng(0)
    chosen = {d.idx: ("to_do", "not_to_do")[rng.integers(2)] for d in dilemmas}
    table = pd.DataFrame(
        [(d.idx, kind, list(a.values)) for d in dilemmas for kind, a in d.actions.items()],
        columns=["idx", "action_type", "values"],
    )

    def ours() -> dict[str, float]:
        found = preference(chosen, dilemmas, "value", ci=False)
        return dict(zip(found["class"], found["preference"], strict=True))

    def peer() -> dict[str, float]:
        found = {}
        for value in load_values():
            selected = neglected = 0
            for _, row in table.iterrows():
                if value in row["values"]:
                    taken = row["action_type"] == chosen[row["idx"]]
                    selected, neglected = selected + taken, neglected + (not taken)
            if selected + neglected:
                found[value] = 100 * (selected - neglected) / (selected + neglected)
        return found

    def agree(a: dict[str, float], b: dict[str, float]) -> None:
        assert a == b

    title = "preferences of 301 values, 136 actions"
    return Benchmark(title, ours, peer, "row scan per value", target=100.0, agree=agree)


def _likelihoods() -> Benchmark:
    """Log-odds of both labels; the peer encodes each prompt anew for each label."""
    client = smollm2_client()
    task = DilemmaTask(written_dilemmas()[:8], order="both", mode="likelihood")
    queries = [task.render(sample) for sample in task.samples()]

    def ours() -> list[float]:
        totals = [record.response.total for record in evaluate(task, client, block=8)]
        return [first - second for first, second in totals]

    def log_likelihood(before: str, label: str) -> float:
        head = client.tokenizer(before, add_special_tokens=False)["input_ids"]
        tail = client.tokenizer(label, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            logits = client.model(torch.tensor([head + tail])).logits[0, len(head) - 1 : -1]
        return float(torch.log_softmax(logits.float(), -1)[range(len(tail)), tail].sum())

    def peer() -> list[float]:
        odds = []
        for query in queries:
            first, second = (log_likelihood(client.render(query.asked), la) for la in LABELS)
            odds.append(first - second)
        return odds

    def agree(a: list[float], b: list[float]) -> None:
        np.testing.assert_allclose(a, b, atol=2e-3)

    title = "SmolLM2, log-odds of 8 dilemmas in both orders"
    return Benchmark(title, ours, peer, "a full pass per label", target=3.0, agree=agree)
