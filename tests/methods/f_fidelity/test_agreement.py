"""Rank correlations, places, sizes: against scipy and by hand."""

import numpy as np
import pytest
import torch
from scipy import stats

from ritornello.methods.f_fidelity import explanation_size, rank_agreement
from ritornello.methods.f_fidelity.agreement import mid_ranks, spearman


def test_spearman_equals_scipys_with_ties():
    rng = np.random.default_rng(0)
    a, b = rng.integers(4, size=(2, 7, 30)).astype(float)
    expected = [stats.spearmanr(a[:, i], b[:, i]).statistic for i in range(30)]
    np.testing.assert_allclose(spearman(a, b), expected, atol=1e-12)
    np.testing.assert_array_equal(mid_ranks(a[:, 0]), stats.rankdata(a[:, 0]))


def test_undefined_correlations_are_nan_and_left_out():
    morf = np.array([[0.5, 0.1], [0.5, 0.2], [0.5, 0.3]])
    quality = np.array([1.0, 0.5, 0.0])
    assert np.isnan(spearman(morf, quality[:, None])).tolist() == [True, False]
    assert rank_agreement(morf, quality).micro == -1
    flat = rank_agreement(morf[:, :1], quality)
    assert np.isnan(flat.micro)
    assert np.isnan(flat.macro)


def test_macro_and_micro_are_not_swapped():
    """One size dominates the mean curve, two others disagree with it."""
    morf = np.array([[0.0, 0.02, 0.02], [1.0, 0.01, 0.01]])
    macro, micro, place = rank_agreement(morf, np.array([1.0, 0.0]))
    assert (macro, place) == (-1, 1)
    assert micro == pytest.approx(1 / 3)


def test_places_of_metrics():
    quality = np.array([1.0, 0.5, 0.0])
    good, bad = np.array([[0.1], [0.2], [0.3]]), np.array([[0.3], [0.2], [0.1]])
    metrics, lerf = np.stack([good, good, bad]), np.stack([bad, bad, good])
    assert rank_agreement(metrics, quality).micro_rank.tolist() == [1, 1, 3]
    assert rank_agreement(metrics, quality).macro.tolist() == [-1, -1, 1]
    averaged = rank_agreement(lerf, quality, best=1, ties="average")
    assert averaged.micro_rank.tolist() == [1.5, 1.5, 3]
    # All three agree with their own LeRF curves; an undefined correlation comes last.
    assert rank_agreement(metrics, lerf).micro_rank.tolist() == [1, 1, 1]
    flat = np.stack([np.ones((3, 1)), bad])
    assert rank_agreement(flat, quality).micro_rank.tolist() == [2, 1]


def test_size_at_the_peak_and_at_the_edge_of_the_plateau(generator):
    sizes = [0.05, 0.1, 0.15, 0.2]
    plus = torch.tensor([0.1, 0.6, 0.6, 0.2]).expand(40, 4) + 0.1 * torch.randn(
        40, 1, generator=generator
    )
    peak = explanation_size(plus, sizes, generator=generator)
    assert peak.size == 0.1
    assert peak.ci[0] <= peak.size <= peak.ci[1]
    size, ci = explanation_size(plus.mean(0), sizes)
    assert size == 0.1
    assert np.isnan(ci).all()
    assert explanation_size(plus, sizes, rule="plateau").size == 0.15
    # What grows by construction below beta/alpha is left out.
    assert explanation_size(plus, sizes, smallest=0.12).size == 0.15
    with pytest.raises(ValueError, match="smallest"):
        explanation_size(plus, sizes, smallest=0.5)
    with pytest.raises(ValueError, match="rule"):
        explanation_size(plus, sizes, rule="kink")
    with pytest.raises(ValueError, match="curve_plus must be"):
        explanation_size(plus[:, :2], sizes)


def test_planted_size_is_found():
    """FFid⁺ of a judge that counts nine planted cells is flat up to them, then falls as c/k."""
    from ritornello.methods.f_fidelity import f_fidelity

    class Counts(torch.nn.Module):
        def forward(self, x):
            share = (x.flatten(1)[:, :9] > 0).float().mean(1)
            return torch.stack([share, 1 - share], 1).clamp(min=1e-9).log()

    x, labels = torch.ones(30, 1, 10, 10), torch.zeros(30).long()
    scores = torch.zeros(30, 10, 10)
    scores.view(30, 100)[:, :9] = 1
    sizes = [i / 100 for i in range(3, 40, 3)]
    how = {"n_samples": 200, "reduce": "prob"}
    found = f_fidelity(Counts().eval(), x, labels, scores, sizes, beta=0.015, **how)
    # beta·d·min(1, c/k)/c of the probability goes.
    expected = torch.tensor([1.5 * min(1, 9 / (100 * s)) / 9 for s in sizes])
    torch.testing.assert_close(found.plus, expected, atol=0.01, rtol=0)
    plus = found.clean[:, None] - found.morf
    size = explanation_size(plus, sizes, rule="plateau", smallest=0.03).size
    assert abs(size - 0.09) <= 0.03 + 1e-9


def test_bad_shapes_are_named():
    with pytest.raises(ValueError, match="curves must be"):
        rank_agreement(np.zeros((3, 2)), np.zeros(2))
    with pytest.raises(ValueError, match="curves must be"):
        rank_agreement(np.zeros((1, 2)), np.zeros(1))
    with pytest.raises(ValueError, match="ties must be"):
        rank_agreement(np.zeros((3, 2)), np.zeros(3), ties="max")
