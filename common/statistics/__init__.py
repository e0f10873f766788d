"""Intervals for paired comparisons: thin over scipy, seeded, vectorised."""

from ritornello.common.statistics.intervals import (
    Interval,
    bootstrap_indices,
    bootstrap_interval,
    paired_bootstrap,
    slope_interval,
    t_interval,
)

__all__ = [
    "Interval",
    "bootstrap_indices",
    "bootstrap_interval",
    "paired_bootstrap",
    "slope_interval",
    "t_interval",
]
