"""Times two callables in turn, so that a change of the machine's speed hits both."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Benchmark:
    """One comparison.

    Attributes:
        name: what is done, with its size.
        ours, peer: callables that do the same work once.
        peer_name: who the peer is.
        target: the ratio (peer time / our time) that is aimed at; None where there is none.
        agree: checks, before any timing, that both give the same (raises if not).
        inner: calls per timed sample, for work of microseconds.
        seconds: time budget for all samples.
        peer_share: how much of the work `peer` does, where all of it would take too long; its time
            is divided by this share, and `peer_name` should say so.
    """

    name: str
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    peer_name: str
    target: float | None = None
    agree: Callable[[Any, Any], None] | None = None
    inner: int = 1
    seconds: float = 4.0
    peer_share: float = 1.0


@dataclass(frozen=True)
class Timing:
    """The outcome: median seconds of one call, and the ratio's median and quartiles."""

    name: str
    peer_name: str
    ours: float
    peer: float
    ratio: float
    ratio_low: float
    ratio_high: float
    repeats: int
    target: float | None


def time_pair(benchmark: Benchmark) -> Timing:
    """Warms both sides up, checks that they agree, then times them in turn."""
    mine, theirs = benchmark.ours(), benchmark.peer()
    if benchmark.agree is not None:
        benchmark.agree(mine, theirs)
    ours: list[float] = []
    peer: list[float] = []
    deadline = time.perf_counter() + benchmark.seconds
    while len(ours) < 5 or (time.perf_counter() < deadline and len(ours) < 200):
        ours.append(_seconds(benchmark.ours, benchmark.inner))
        peer.append(_seconds(benchmark.peer, benchmark.inner) / benchmark.peer_share)
    ratios = sorted(p / o for p, o in zip(peer, ours, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Timing(
        benchmark.name,
        benchmark.peer_name,
        statistics.median(ours),
        statistics.median(peer),
        middle,
        low,
        high,
        len(ratios),
        benchmark.target,
    )


def _seconds(call: Callable[[], Any], inner: int) -> float:
    start = time.perf_counter()
    for _ in range(inner):
        call()
    return (time.perf_counter() - start) / inner
