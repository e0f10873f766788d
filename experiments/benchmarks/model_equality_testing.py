"""Permutation statistics at the paper's size against the published package: equal numbers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ritornello.common.optional import require
from ritornello.experiments.benchmarks.harness import Benchmark
from ritornello.methods.model_equality_testing import CompletionSample, Statistic
from ritornello.methods.model_equality_testing.statistics import Kind, Pool

PROMPTS, PER_PROMPT, LENGTH = 25, 10, 1000
PERMUTATIONS = 1000
# The package computes everything anew for each permutation, so its time is proportional to their
# number: all of them would take minutes a call, and a few are timed instead.
TIMED = {"mmd_hamming": 2, "l1": 10, "chi_squared": 10}


def benchmarks() -> Iterator[Benchmark]:
    """N = 250 a sample, m = 25, L = 1000 characters, 1000 permutations."""
    tests = require("model_equality_testing.tests", extra="bench")
    a, b = texts(0), texts(1)
    for kind, published, target in (
        ("mmd_hamming", "mmd_hamming", 900.0),
        ("l1", "two_sample_L1", None),
        ("chi_squared", "two_sample_chi_squared", None),
    ):
        yield _compare(kind, tests.IMPLEMENTED_TESTS[published], a, b, target)


def texts(seed: int) -> CompletionSample:
    """Completions of about 50 words of a made-up language."""
    rng = np.random.default_rng(seed)
    letters = np.random.default_rng(9).integers(97, 123, (400, 9))
    sizes = np.random.default_rng(8).integers(2, 9, 400)
    words = ["".join(map(chr, row[:size])) for row, size in zip(letters, sizes, strict=True)]
    prompts = np.repeat(np.arange(PROMPTS), PER_PROMPT)
    found = [" ".join(rng.choice(words, size=rng.integers(35, 55))) for _ in prompts]
    return CompletionSample(prompts, found, PROMPTS, length=LENGTH)


def _compare(
    kind: Kind,
    published: Any,
    a: CompletionSample,
    b: CompletionSample,
    target: float | None,
) -> Benchmark:
    sample = require("model_equality_testing.distribution", extra="bench").CompletionSample
    rng = np.random.default_rng(2)
    orders = np.stack([rng.permutation(len(a) + len(b)) for _ in range(PERMUTATIONS)])
    timed = TIMED[kind]

    def ours() -> np.ndarray:
        pool = Pool.of(a, b)
        member = torch.zeros(orders.shape, dtype=torch.bool)
        member.scatter_(1, torch.from_numpy(orders)[:, : len(a)], True)
        return Statistic(kind).pooled(pool.codes, pool.pad)(member[:, pool.order][None])[0].numpy()

    def peer() -> np.ndarray:
        prompts = torch.cat([a.prompts, b.prompts])
        rows = torch.cat([a.completions, b.completions])
        found = []
        for order in orders[:timed]:
            parts = order[: len(a)], order[len(a) :]
            split = [sample(prompts[part], rows[part], m=PROMPTS) for part in parts]
            found.append(float(published(*split)))
        return np.array(found)

    def agree(x: np.ndarray, y: np.ndarray) -> None:
        # the package's counts are computed in float32
        rtol = 1e-9 if kind.startswith("mmd") else 1e-4
        np.testing.assert_allclose(x[:timed], y, rtol=rtol, atol=1e-9)

    return Benchmark(
        f"{kind}, N = {len(a)}, L = {LENGTH}, {PERMUTATIONS} permutations",
        ours=ours,
        peer=peer,
        peer_name=f"model-equality-testing 0.0.2, timed on {timed} permutations",
        target=target,
        agree=agree,
        peer_share=timed / PERMUTATIONS,
    )
