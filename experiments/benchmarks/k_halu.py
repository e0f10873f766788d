"""K-HALU: likelihoods with a shared document against one pass per option; scores against loops."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from ritornello.common.chat import TransformersClient
from ritornello.common.models import load_smollm2, load_smollm2_tokenizer
from ritornello.experiments.benchmarks import Benchmark
from ritornello.methods.k_halu import (
    KHaluLogLikelihood,
    macro_intervals,
    make_synthetic_khalu,
)

RESAMPLES = 100


def benchmarks() -> Iterator[Benchmark]:
    """Five options of a 900-token document; the interval of the official F1."""
    yield _scoring()
    yield _bootstrap()


def _scoring() -> Benchmark:
    tokenizer = load_smollm2_tokenizer()
    model = load_smollm2()
    client = TransformersClient(model, tokenizer)
    documents = make_synthetic_khalu(16, 0, "en")
    text = " ".join(sample.text for sample in documents)
    query = KHaluLogLikelihood([documents[0]]).render(documents[0])
    ids = tokenizer(text)["input_ids"][:900]
    prompt = tokenizer.decode(ids)

    @torch.inference_mode()
    def every_option_anew() -> list[float]:
        start = len(tokenizer(prompt)["input_ids"])
        totals = []
        for option in query.continuations:
            whole = torch.tensor(tokenizer(prompt + option)["input_ids"])[None]
            logits = model(whole).logits[0, start - 1 : -1]
            chosen = torch.log_softmax(logits.float(), -1).gather(1, whole[0, start:, None])
            totals.append(chosen.sum().item())
        return totals

    def shared() -> list[float]:
        return list(client.score_continuations([prompt], [query.continuations])[0].total)

    return Benchmark(
        "five options, 900 tokens",
        ours=shared,
        peer=every_option_anew,
        peer_name="a full pass per option, as lm-evaluation-harness",
        target=3.0,
        agree=partial(np.testing.assert_allclose, atol=1e-3),
    )


def _bootstrap() -> Benchmark:
    from sklearn.metrics import f1_score
    from sklearn.preprocessing import MultiLabelBinarizer

    rng = np.random.default_rng(0)
    gold = [set(rng.permutation(5)[: rng.integers(1, 4)].tolist()) for _ in range(2170)]
    picked = [set(rng.permutation(5)[: len(right)].tolist()) for right in gold]

    def ours() -> tuple[float, float]:
        return macro_intervals(gold, picked, resamples=RESAMPLES)["f1"]

    def peer() -> tuple[float, float]:
        fit = MultiLabelBinarizer(classes=range(5)).fit(gold)
        g, p = fit.transform(gold), fit.transform(picked)
        values = []
        for _ in range(RESAMPLES):
            rows = rng.integers(len(g), size=len(g))
            values.append(f1_score(g[rows], p[rows], average="macro", zero_division=0))
        low, high = np.quantile(values, [0.025, 0.975])
        return float(low), float(high)

    return Benchmark(
        f"macro F1 interval, {RESAMPLES} resamples of 2,170 questions",
        ours=ours,
        peer=peer,
        peer_name="scikit-learn on each resample, as lm-evaluation-harness",
        target=20.0,
        agree=partial(np.testing.assert_allclose, atol=0.01),
    )
