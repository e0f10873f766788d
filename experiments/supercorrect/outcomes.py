"""Shares of outcomes, which both parts report alike."""

import statistics
from collections.abc import Sequence

from ritornello.common.runs import Measurement


def share(metric: str, outcomes: Sequence[float | bool], **coordinates: str) -> Measurement:
    """The share of right ones among `outcomes`, which are kept as samples."""
    samples = [float(outcome) for outcome in outcomes]
    return Measurement(metric, statistics.fmean(samples), samples=samples, coordinates=coordinates)
