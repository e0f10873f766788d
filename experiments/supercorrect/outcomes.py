"""Shares of outcomes, which both parts report alike."""

import statistics
from collections.abc import Iterator, Sequence

from ritornello.common.runs import Measurement


def share(metric: str, outcomes: Sequence[float | bool], **coordinates: str) -> Measurement:
    """The share of right ones among `outcomes`, which are kept as samples."""
    samples = [float(outcome) for outcome in outcomes]
    return Measurement(metric, statistics.fmean(samples), samples=samples, coordinates=coordinates)


def steadiness(runs: Sequence[Sequence[bool]]) -> Iterator[Measurement]:
    """Fig. 5: accuracies of repeated sampled runs, and how far they lie from each other."""
    means = [statistics.fmean(run) for run in runs]
    yield Measurement("sampled_accuracy", statistics.fmean(means), samples=means)
    yield Measurement("sampled_spread", statistics.pstdev(means))
