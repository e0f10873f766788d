"""p-values, nulls, power, goodness of fit."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from ritornello.experiments.model_equality_testing.markov import MarkovModel, sampler
from ritornello.methods.model_equality_testing import (
    CompletionDistribution,
    CompletionSample,
    Statistic,
    bonferroni,
    bootstrap_null,
    composite_test,
    estimate_power,
    goodness_of_fit_test,
    power,
    two_sample_test,
)
from ritornello.methods.model_equality_testing.statistics import PUBLISHED_NAMES
from ritornello.methods.model_equality_testing.two_sample import p_values, shuffled_labels

MODEL = MarkovModel.random(4, 12, seed=0)
OTHER = MODEL.altered("watermark", seed=0)


def draw(model, n, seed, length=6):
    return model.sample(n, np.random.default_rng(seed), length)


@pytest.mark.parametrize("stratified", [False, True])
def test_p_values_are_uniform_when_the_models_are_equal(stratified):
    """Kolmogorov-Smirnov on 300 simulated tests; p is discrete in steps of 1/100."""
    same = sampler(MODEL, 6, 6)
    estimate = estimate_power(same, same, 6, n_simulations=300, n_resamples=99,
                              stratified=stratified, seed=3)  # fmt: skip
    jitter = np.random.default_rng(0).random(300) / 100
    assert stats.kstest(estimate.p_values.numpy() - jitter, "uniform").pvalue > 0.01


def test_power_is_the_share_of_single_tests_that_reject():
    estimate = estimate_power(
        sampler(MODEL, 6, 6), sampler(OTHER, 6, 6), 6, n_simulations=40, n_resamples=99
    )
    single = [
        two_sample_test(draw(MODEL, 6, i), draw(OTHER, 6, 100 + i), n_resamples=99).rejects(0.05)
        for i in range(40)
    ]
    assert estimate.power == pytest.approx(np.mean(estimate.rejections))
    assert estimate.low < np.mean(single) < estimate.high


@pytest.mark.parametrize("kind", ["mmd_hamming", "mmd_spectrum", "mmd_one_hot"])
def test_a_kernel_cut_from_the_pool_equals_one_of_the_draw(kind, rng):
    """Twenty completions a prompt, of which each of 30 simulations draws eight: cutting pays."""
    statistic = Statistic(kind)
    draws = power._Draws.of(draw(MODEL, 20, 0), draw(OTHER, 20, 1), 8, 30, False, rng)
    part = slice(5, 9)
    labels = torch.from_numpy(rng.random((4, 7, 4 * 16)) < 0.5)
    cut = draws.pooled(statistic, part)(labels)
    codes = [rows[places[part]] for rows, places in zip(draws.rows, draws.places, strict=True)]
    torch.testing.assert_close(cut, statistic.pooled(codes, -1)(labels), rtol=1e-12, atol=1e-12)


def test_a_row_drawn_twice_is_similar_to_itself(rng):
    """With replacement a draw may hold a row twice, here in as many draws as make cutting pay."""
    statistic = Statistic("mmd_one_hot")
    pool = CompletionSample([0] * 200, rng.integers(9, size=(200, 2)))
    draws = power._Draws.of(pool, pool, 1, 10_000, True, rng)
    places = draws.places[0]
    twice = places[:, 0] == places[:, 1]
    assert bool(twice.any())
    blocks = draws.pooled(statistic, slice(0, 10_000)).blocks[0]
    assert bool((blocks[twice, 0, 1] == 1).all())


def test_chunks_of_simulations_are_joined(monkeypatch):
    pools = draw(MODEL, 40, 0), draw(OTHER, 40, 1)
    monkeypatch.setattr(power, "_CHUNK", 50 * 64 * 4)
    estimate = estimate_power(*pools, 8, n_simulations=30, n_resamples=50)
    assert estimate.p_values.shape == (30,)
    assert 0.1 < estimate.power <= 1


def test_one_pool_given_twice_is_split_into_disjoint_parts():
    pool = draw(MODEL, 24, 5)
    estimate = estimate_power(pool, pool, 12, n_simulations=100, n_resamples=99)
    assert estimate.power < 0.15


def test_replacement_from_small_pools_is_refused_because_it_inflates_false_positives():
    pools = draw(MODEL, 48, 0), draw(MODEL, 48, 1)
    with pytest.raises(ValueError, match="pool has 48 completions of prompt 0"):
        estimate_power(*pools, 10, replace=True)
    with pytest.raises(ValueError, match="needs at least 49"):
        estimate_power(*pools, 49)
    assert estimate_power(*pools, 48, n_simulations=2).p_values.shape == (2,)


def test_plus_one_is_never_zero_and_the_published_form_can_be():
    a, b = draw(MODEL, 30, 0, 2), draw(OTHER, 30, 1, 2)
    ours = two_sample_test(a, b, n_resamples=50)
    published = two_sample_test(a, b, n_resamples=50, plus_one=False)
    assert ours.p_value == pytest.approx(1 / 51)
    assert published.p_value == 0.0
    assert ours.null_statistics.equal(published.null_statistics)


def test_p_counts_ties_and_undefined_resamples():
    null = torch.tensor([0.0, 1.0, 1.0 - 1e-14, 2.0, torch.nan])
    assert float(p_values(torch.tensor(1.0), null, slack=1e-12, plus_one=False)) == 0.8
    assert float(p_values(torch.tensor(1.0), null, slack=1e-12)) == pytest.approx(5 / 6)


def test_splits_without_a_repeated_prompt_are_undefined_however_sums_round(rng):
    prompts = np.repeat([0, 1], 5)
    codes = torch.from_numpy(rng.integers(4, size=(2, 1, 5, 7)))
    labels = torch.ones(1, 25, 10, dtype=torch.bool)
    # each split leaves one completion of either prompt to the second sample
    for split, pair in enumerate(itertools.product(range(5), range(5, 10))):
        labels[0, split, list(pair)] = False
    assert (prompts[~labels[0, 0]] == [0, 1]).all()
    assert bool(Statistic().pooled(list(codes), -1)(labels).isnan().all())


def test_distinct_completions_leave_counts_without_power():
    a = CompletionSample([0] * 6, np.arange(12).reshape(6, 2))
    b = CompletionSample([0] * 6, np.arange(12, 24).reshape(6, 2))
    for kind in ("l1", "l2", "chi_squared", "mmd_one_hot"):
        assert two_sample_test(a, b, kind).p_value == 1.0


def test_stratified_labels_keep_the_counts_of_every_prompt(rng):
    first = torch.tensor([True, True, False, False, False, True])
    labels = shuffled_labels(first, 50, rng, [4, 2])
    assert (labels[:, :4].sum(1) == 2).all()
    assert (labels[:, 4:].sum(1) == 1).all()
    free = shuffled_labels(first, 50, rng)
    assert (free.sum(1) == 3).all()
    assert (free[:, 4:].sum(1) != 1).any()


def test_with_fixed_counts_only_stratified_permutations_keep_the_level_of_rare_matches():
    """One-hot kernel, 10 of each prompt: free shuffles unbalance the prompts, the data never do."""
    chains = MarkovModel.random(10, 30, 0)
    same = sampler(chains, 10, 10)
    options = {"n_simulations": 200, "n_resamples": 99, "statistic": "mmd_one_hot", "seed": 7}
    assert estimate_power(same, same, 10, stratified=True, **options).power <= 0.08
    assert estimate_power(same, same, 10, stratified=False, **options).power > 0.08


def test_the_same_seed_gives_the_same_test(pair):
    first, second = two_sample_test(*pair, seed=3), two_sample_test(*pair, seed=3)
    assert first.null_statistics.equal(second.null_statistics)
    assert not first.null_statistics.equal(two_sample_test(*pair, seed=4).null_statistics)


def test_bootstrap_against_the_null_model():
    def null(n, rng):
        return MODEL.sample(n // 4, rng, 6)

    kept = bootstrap_null(null, (120, 120), n_resamples=60)
    options = {"method": "bootstrap", "n_resamples": 60}
    reference, same, served = draw(MODEL, 30, 0), draw(MODEL, 30, 1), draw(OTHER, 30, 1)
    drawn = two_sample_test(reference, same, null_sampler=null, **options)
    assert drawn.null_statistics.equal(kept.null_statistics)
    other = two_sample_test(reference, served, null_sampler=kept, **options)
    assert other.p_value < 0.05 < drawn.p_value
    with pytest.raises(ValueError, match="made for other samples"):
        two_sample_test(draw(MODEL, 7, 0), same, null_sampler=kept, **options)
    with pytest.raises(ValueError, match="null_sampler is needed"):
        two_sample_test(reference, same, **options)


def test_a_composite_null_falls_only_if_every_single_one_does():
    served = draw(OTHER, 30, 0)
    nulls = {"p": draw(MODEL, 30, 1), "q": draw(OTHER, 30, 2)}
    rejected, single = composite_test(served, nulls, n_resamples=199)
    assert not rejected
    assert single["p"].rejects(0.05)
    assert not single["q"].rejects(0.05)
    assert composite_test(served, {"p": nulls["p"]}, n_resamples=199)[0]
    rejected, unnamed = composite_test(served, list(nulls.values()), n_resamples=199)
    assert not rejected
    assert [r.p_value for r in unnamed.values()] == [r.p_value for r in single.values()]


def test_statistics_are_known_by_their_published_names_too():
    a, b = draw(MODEL, 8, 0), draw(OTHER, 8, 1)
    for published, kind in PUBLISHED_NAMES.items():
        theirs, ours = (two_sample_test(a, b, name, n_resamples=19) for name in (published, kind))
        assert (theirs.statistic, theirs.p_value) == (ours.statistic, ours.p_value)


def test_bonferroni_divides_the_level():
    assert bonferroni([0.01, 0.02, 0.5], 0.05) == [True, False, False]
    assert bonferroni([0.02], 0.05) == [True]


@pytest.mark.parametrize("kind", ["g_squared", "chi_squared", "truncated_chi_squared", "l1", "l2"])
def test_goodness_of_fit_accepts_its_own_model_and_rejects_another(kind, rng):
    codes = [[[0, 0], [0, 1], [1, 0]], [[2, 2], [2, -1]]]
    null = CompletionDistribution([0.4, 0.6], codes, [[0.5, 0.3, 0.2], [0.9, 0.1]])
    other = CompletionDistribution([0.4, 0.6], codes, [[0.1, 0.3, 0.6], [0.5, 0.5]])
    assert goodness_of_fit_test(null.sample(200, rng), null, kind).p_value > 0.02
    assert goodness_of_fit_test(other.sample(200, rng), null, kind).p_value < 0.01


@pytest.mark.parametrize("kind", ["g_squared", "chi_squared"])
def test_what_the_null_excludes_is_infinitely_surprising(kind):
    null = CompletionDistribution([1.0], [[[0], [1]]], [[0.5, 0.5]])
    result = goodness_of_fit_test(CompletionSample([0, 0], [[0], [2]]), null, kind)
    assert result.statistic == np.inf
    assert result.p_value == pytest.approx(1 / 1001)
