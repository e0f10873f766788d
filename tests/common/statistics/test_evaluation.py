"""Standard errors, intervals and tests of benchmark scores."""

import json

import numpy as np
import pytest
import torch

from ritornello.common.statistics.evaluation import (
    cluster_bootstrap,
    clustered_standard_error,
    holm,
    macro_mean,
    mcnemar_p,
    standard_error,
    wilson_interval,
)


def test_reference_values(golden):
    cases = json.loads((golden / "_benchmark_harness/statistics.json").read_text())
    for case in cases:
        scores, other = np.array(case["scores"]), np.array(case["other"])
        difference, n = scores - other, len(scores)
        assert standard_error(scores) == pytest.approx(case["stderr"], abs=1e-10)
        assert clustered_standard_error(scores, case["cluster"]) == pytest.approx(
            case["clustered_stderr"], abs=1e-10
        )
        wilson = wilson_interval(int(scores.sum()), n)
        assert wilson[1:] == pytest.approx(case["wilson95"], abs=1e-10)
        assert difference.mean() == pytest.approx(case["paired_mean"], abs=1e-10)
        assert standard_error(difference) == pytest.approx(case["paired_stderr"], abs=1e-10)
        assert mcnemar_p(scores, other) == pytest.approx(case["mcnemar_exact_p"], abs=1e-10)
        tolerance = 0.02 + 1 / n
        found = cluster_bootstrap(scores)
        assert found.estimate == pytest.approx(case["mean"], abs=1e-10)
        assert found[1:] == pytest.approx(case["bootstrap"]["mean95"], abs=tolerance)
        paired = cluster_bootstrap(difference)
        assert paired[1:] == pytest.approx(case["bootstrap"]["paired95"], abs=tolerance)


def test_wilson_intervals_at_the_ends_stay_within_shares():
    assert wilson_interval(15, 50) == pytest.approx((0.3, 0.19103, 0.43752), abs=1e-4)
    assert wilson_interval(0, 10).low == 0.0
    assert wilson_interval(10, 10).high == pytest.approx(1.0)


@pytest.mark.parametrize("distinct", [2, 300])
def test_drawing_counts_equals_drawing_clusters_one_by_one(distinct):
    """The multinomial over kinds of clusters, and the plain draw, against an obvious loop."""
    rng = np.random.default_rng(0)
    scores = rng.integers(distinct, size=300) / distinct
    clusters = rng.integers(60, size=300)
    members = [np.flatnonzero(clusters == c) for c in np.unique(clusters)]
    means = []
    for _ in range(4000):
        drawn = np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))])
        means.append(scores[drawn].mean())
    found = cluster_bootstrap(scores, clusters, resamples=4000)
    assert found[1:] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.012)


def test_intervals_cover_at_their_level():
    """95 % intervals of clustered scores cover the mean nearly as often as they say."""
    rng = np.random.default_rng(1)
    covered = ignored = 0
    for trial in range(200):
        effect = np.repeat(rng.normal(size=60), 5)
        scores = effect + rng.normal(size=300)
        clusters = np.repeat(np.arange(60), 5)
        _, low, high = cluster_bootstrap(scores, clusters, resamples=500, seed=trial)
        covered += low < 0 < high
        _, low, high = cluster_bootstrap(scores, resamples=500, seed=trial)
        ignored += low < 0 < high
    assert covered >= 180
    assert ignored < 170


def test_a_single_cluster_has_no_error_and_the_seed_decides():
    assert clustered_standard_error([0, 1, 1], ["a"] * 3) == 0
    scores = np.random.default_rng(0).random(50)
    assert cluster_bootstrap(scores, seed=1) == cluster_bootstrap(scores, seed=1)
    assert cluster_bootstrap(scores, seed=1) != cluster_bootstrap(scores, seed=2)


def test_clusters_may_be_a_list_an_array_or_a_tensor():
    scores, clusters = [1.0, 0.0, 1.0, 1.0, 0.0], [0, 0, 1, 1, 1]
    expected = cluster_bootstrap(scores, clusters)
    assert expected != cluster_bootstrap(scores)
    for form in (np.array, torch.tensor):
        assert cluster_bootstrap(scores, form(clusters)) == expected


def test_holm_by_hand():
    """0.01 * 3, then 0.02 * 2, then the running maximum."""
    assert holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.8]) == [1, 1]


def test_macro_means_weigh_tasks_equally():
    mean, error = macro_mean([[0, 1], [1, 1, 1, 1]])
    assert mean == 0.75
    assert error == pytest.approx(standard_error([0, 1]) / 2)


def test_agreement_of_identical_systems_is_no_evidence():
    assert mcnemar_p([0, 1, 1], [0, 1, 1]) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: standard_error([]), "vector of finite"),
        (lambda: standard_error([float("nan")]), "vector of finite"),
        (lambda: clustered_standard_error([0, 1], ["a"]), "one per score"),
        (lambda: wilson_interval(3, 2), "successes"),
        (lambda: mcnemar_p([0.5], [1]), "0/1 scores"),
        (lambda: macro_mean([]), "at least one task"),
    ],
)
def test_bad_values_are_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()
