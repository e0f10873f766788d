"""Rank correlations, places, sizes: against scipy and by hand."""

import numpy as np
import pytest
import torch
from scipy import stats

from ritornello.methods.f_fidelity import explanation_size, micro_rank, rank_agreement
from ritornello.methods.f_fidelity.agreement import mid_ranks, spearman


def test_spearman_equals_scipys_with_ties():
    rng = np.random.default_rng(0)
    a, b = rng.integers(4, size=(2, 7, 30)).astype(float)
    expected = [stats.spearmanr(a[:, i], b[:, i]).statistic for i in range(30)]
    np.testing.assert_allclose(spearman(a, b), expected, atol=1e-12)
    np.testing.assert_array_equal(mid_ranks(a[:, 0]), stats.rankdata(a[:, 0]))


def test_undefined_correlations_are_counted_not_zero():
    morf = np.array([[0.5, 0.1], [0.5, 0.2], [0.5, 0.3]])
    found = rank_agreement(morf, morf, np.array([1.0, 0.5, 0.0]))
    assert np.isnan(found.by_size["morf_vs_gt"][0])
    assert found.undefined["morf_vs_gt"] == 1
    assert found.micro["morf_vs_gt"] == -1
    assert found.kendall["morf_vs_gt"] == pytest.approx(-1)
    flat = rank_agreement(morf[:, :1], morf[:, :1], np.array([1.0, 0.5, 0.0]))
    assert np.isnan(flat.micro["morf_vs_gt"])
    assert np.isnan(flat.macro["morf_vs_gt"])


def test_macro_and_micro_are_not_swapped():
    """One size dominates the mean curve, two others disagree with it."""
    morf = np.array([[0.0, 0.02, 0.02], [1.0, 0.01, 0.01]])
    found = rank_agreement(morf, morf, np.array([1.0, 0.0]))
    assert found.macro["morf_vs_gt"] == -1
    assert found.micro["morf_vs_gt"] == pytest.approx(1 / 3)


def test_places_of_metrics():
    quality = np.array([1.0, 0.5, 0.0])
    good, bad = np.array([[0.1], [0.2], [0.3]]), np.array([[0.3], [0.2], [0.1]])
    agreements = {
        "a": rank_agreement(good, bad, quality),
        "b": rank_agreement(good, bad, quality),
        "c": rank_agreement(bad, good, quality),
    }
    shared = micro_rank(agreements)
    assert [shared[m]["morf_vs_gt"] for m in "abc"] == [1, 1, 3]
    averaged = micro_rank(agreements, ties="average")
    assert [averaged[m]["lerf_vs_gt"] for m in "abc"] == [1.5, 1.5, 3]
    assert [shared[m]["morf_vs_lerf"] for m in "abc"] == [1, 1, 1]


def test_size_at_the_peak_and_at_the_edge_of_the_plateau(generator):
    sizes = [0.05, 0.1, 0.15, 0.2]
    plus = torch.tensor([0.1, 0.6, 0.6, 0.2]).expand(40, 4) + 0.1 * torch.randn(
        40, 1, generator=generator
    )
    peak = explanation_size(plus, sizes, generator=generator)
    assert peak.size == 0.1
    assert peak.low <= peak.size <= peak.high
    assert explanation_size(plus, sizes, rule="plateau").size == 0.15
    # What grows by construction below beta/alpha is left out.
    assert explanation_size(plus, sizes, smallest=0.12).size == 0.15
    with pytest.raises(ValueError, match="smallest"):
        explanation_size(plus, sizes, smallest=0.5)
    with pytest.raises(ValueError, match="rule"):
        explanation_size(plus, sizes, rule="kink")
    with pytest.raises(ValueError, match="plus must be"):
        explanation_size(plus[:, :2], sizes)


def test_planted_size_is_found():
    """FFid⁺ of a judge that counts nine planted cells is flat up to them, then falls as c/k."""
    from ritornello.methods.f_fidelity import Sampling, f_fidelity

    class Counts(torch.nn.Module):
        def forward(self, x):
            share = (x.flatten(1)[:, :9] > 0).float().mean(1)
            return torch.stack([share, 1 - share], 1).clamp(min=1e-9).log()

    x, labels = torch.ones(30, 1, 10, 10), torch.zeros(30).long()
    scores = torch.zeros(30, 10, 10)
    scores.view(30, 100)[:, :9] = 1
    sizes = [i / 100 for i in range(3, 40, 3)]
    sampling = Sampling(200, reduce="prob")
    found = f_fidelity(Counts().eval(), x, labels, scores, sizes, beta=0.015, sampling=sampling)
    # beta·d·min(1, c/k)/c of the probability goes.
    expected = torch.tensor([1.5 * min(1, 9 / (100 * s)) / 9 for s in sizes])
    torch.testing.assert_close(found.plus, expected, atol=0.01, rtol=0)
    plus = found.clean[:, None] - found.morf
    size = explanation_size(plus, sizes, rule="plateau", smallest=0.03).size
    assert abs(size - 0.09) <= 0.03 + 1e-9


def test_bad_shapes_are_named():
    with pytest.raises(ValueError, match="morf and lerf must be"):
        rank_agreement(np.zeros((3, 2)), np.zeros((2, 2)), np.zeros(3))
    with pytest.raises(ValueError, match="ties must be"):
        micro_rank({}, ties="max")
