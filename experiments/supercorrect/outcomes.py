"""What cells report alike: shares of outcomes, and the pairs that a second stage saw."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ritornello.common.jsonl import write_jsonl
from ritornello.common.runs import CellContext, Measurement


def share(metric: str, outcomes: Sequence[float | bool], **coordinates: str) -> Measurement:
    """The share of right ones among `outcomes`, which are kept as samples."""
    samples = [float(outcome) for outcome in outcomes]
    return Measurement(metric, statistics.fmean(samples), samples=samples, coordinates=coordinates)


def keep_pairs(pairs: Sequence[Mapping[str, Any]], context: CellContext) -> None:
    """Writes the cell's preference pairs to `pairs.jsonl` among its artifacts."""
    write_jsonl(context.artifacts / "pairs.jsonl", pairs)
