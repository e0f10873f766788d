"""The published package's own values."""

import json

import numpy as np
import pytest
import torch

from ritornello.methods.model_equality_testing import (
    CompletionDistribution,
    CompletionSample,
    Statistic,
    encode_unicode,
    statistic_of,
)
from ritornello.methods.model_equality_testing.goodness_of_fit import (
    _counts,
    goodness_of_fit_statistic,
)
from ritornello.methods.model_equality_testing.statistics import Pool
from ritornello.methods.model_equality_testing.two_sample import p_values

STATISTICS = {
    "mmd_hamming": Statistic("mmd_hamming"),
    "mmd_kspectrum": Statistic("mmd_spectrum"),
    "mmd_all_subsequences": Statistic("mmd_all_substrings"),
    "mmd_kspectrum_k2_noncumulative": Statistic("mmd_spectrum", k=2, cumulative=False),
    "mmd_kspectrum_k3": Statistic("mmd_spectrum", k=3),
    "two_sample_L1": Statistic("l1"),
    "two_sample_L2": Statistic("l2"),
    "two_sample_chi_squared": Statistic("chi_squared"),
}


@pytest.fixture(scope="module")
def values(golden):
    return json.loads((golden / "model_equality_testing" / "two_sample.json").read_text())


def samples(case):
    return [
        CompletionSample(case[f"prompts_{i}"], case[f"completions_{i}"], case["num_prompts"])
        for i in (1, 2)
    ]


def tolerance(name):
    # the count statistics were computed in float32
    return {"rel": 1e-5, "abs": 1e-6} if name.startswith("mmd") else {"rel": 1e-4, "abs": 1e-6}


@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_equal_the_published_ones(values, case, name):
    case = values["cases"][case]
    ours = statistic_of(*samples(case), STATISTICS[name])
    assert ours == pytest.approx(case["stats"][name], **tolerance(name))


@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize(
    "name", ["mmd_hamming", "two_sample_L1", "two_sample_L2", "two_sample_chi_squared"]
)
def test_statistics_of_given_permutations_and_their_p_value(values, case, name):
    case = values["cases"][case]
    a, b = samples(case)
    pool = Pool.of(a, b)
    pooled = STATISTICS[name].pooled(pool.codes, pool.pad)
    orders = torch.tensor(case["permutations"])
    member = torch.zeros(orders.shape, dtype=torch.bool)
    member.scatter_(1, orders[:, : len(a)], True)
    null = pooled(member[:, pool.order][None])[0]
    for ours, theirs in zip(null.tolist(), case["permuted_stats"][name], strict=True):
        assert ours == pytest.approx(theirs, **tolerance(name))
    # the rule, on the published statistics as they are
    theirs = torch.tensor(case["permuted_stats"][name], dtype=torch.float64)
    seen = torch.tensor(case["stats"][name], dtype=torch.float64)
    published = case["pvalues_over_these_permutations"][name]
    assert float(p_values(seen, theirs, plus_one=False)) == pytest.approx(published)
    # ours: float32 rounding parts ties of the published counts, which we count as ties
    observed = pooled(pool.first[None, None])[0, 0]
    slack = STATISTICS[name].slack(len(a), len(b))
    tied = p_values(seen, theirs, slack=1e-6 * max(1.0, abs(float(seen))), plus_one=False)
    p = float(p_values(observed, null, slack=slack, plus_one=False))
    assert p == pytest.approx(float(tied))
    if name.startswith("mmd"):
        assert p == pytest.approx(published)


def test_code_points_and_padding(values):
    unicode = values["unicode"]
    np.testing.assert_array_equal(encode_unicode(unicode["strings"]), unicode["tokens"])
    padded = encode_unicode(unicode["strings"], 12, truncate=False)
    np.testing.assert_array_equal(padded, unicode["padded_12"])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("g_squared", "g_squared"),
        ("chi_squared", "chi_squared"),
        ("truncated_chi_squared", "truncated_chi_squared"),
        ("l1", "L1"),
        ("l2", "L2"),
    ],
)
def test_goodness_of_fit(values, ours, theirs):
    case = values["one_sample"]
    null = CompletionDistribution(
        case["prompt_distribution"], case["completions"], case["probabilities"]
    )
    sample = CompletionSample(case["prompts"], case["sample"], 2)
    counts, joint = _counts(sample, null.support, null.joint)
    value = goodness_of_fit_statistic(counts, joint, ours, len(null.joint))
    assert float(value) == pytest.approx(case["stats"][theirs], rel=1e-4, abs=1e-6)
