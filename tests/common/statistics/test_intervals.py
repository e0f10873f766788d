"""Intervals cover as often as they say, and agree with closed forms."""

import numpy as np
import pytest
from scipy import stats

from ritornello.common.statistics import (
    bootstrap_interval,
    paired_bootstrap,
    slope_interval,
    t_interval,
)
from ritornello.common.statistics.evaluation import cluster_bootstrap


def test_t_interval_agrees_with_scipy():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    expected = stats.t.interval(0.95, 3, loc=x.mean(), scale=stats.sem(x))
    assert t_interval(x)[1:] == pytest.approx(expected)


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits_t = hits_b = 0
    for trial in range(300):
        x = rng.normal(1.0, 2.0, 40)
        low, high = t_interval(x)[1:]
        hits_t += low < 1.0 < high
        low, high = bootstrap_interval(x, resamples=400, seed=trial)[1:]
        hits_b += low < 1.0 < high
    assert 0.92 < hits_t / 300 < 0.98
    assert 0.90 < hits_b / 300 < 0.98


def test_pairing_removes_what_both_sides_share():
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 10, 50)
    a, b = shared + rng.normal(1, 0.1, 50), shared + rng.normal(0, 0.1, 50)

    def difference(x, y):
        return x.mean(-1) - y.mean(-1)

    paired = paired_bootstrap(a, b, compare=difference)
    assert paired.high - paired.low < 0.2
    assert paired.low < 1.0 < paired.high


def test_bootstrap_is_seeded_and_chunks_change_nothing(monkeypatch):
    from ritornello.common.statistics import intervals

    x = np.arange(30.0)
    first = bootstrap_interval(x, seed=3)
    assert bootstrap_interval(x, seed=3) == first
    assert bootstrap_interval(x, seed=4) != first
    monkeypatch.setattr(intervals, "CHUNK", 30 * 1000)
    assert bootstrap_interval(x, seed=3) == first


def test_slope_interval_covers_an_exact_line():
    interval = slope_interval([0, 1, 2, 3], [1, 3, 5, 7])
    assert interval.estimate == pytest.approx(2.0)


@pytest.mark.parametrize("level", [0, 1, 95])
def test_a_level_is_a_share(level):
    for interval in (t_interval, bootstrap_interval, cluster_bootstrap):
        with pytest.raises(ValueError, match="level must be in"):
            interval([1.0, 2.0, 3.0], level=level)


@pytest.mark.parametrize("bad", [[1.0], [[1.0, 2.0]], [1.0, float("nan")]])
def test_bad_values_are_named(bad):
    with pytest.raises(ValueError, match="values must be"):
        t_interval(bad)
