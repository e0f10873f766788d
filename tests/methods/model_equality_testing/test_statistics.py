"""Statistics: the fast form against loops, invariances, exact distances."""

import numpy as np
import pytest
import torch

from ritornello.experiments.model_equality_testing.markov import MarkovModel, exact_hamming_mmd
from ritornello.methods.model_equality_testing import (
    CompletionSample,
    Statistic,
    mmd_statistic,
    pairwise_mmd,
    reference,
    statistic_of,
)
from ritornello.methods.model_equality_testing.kernels import spectrum_kernel
from ritornello.methods.model_equality_testing.statistics import Pool, PooledMMD

ALL = [
    Statistic("mmd_hamming"),
    Statistic("mmd_hamming", normalisation="paper"),
    Statistic("mmd_spectrum", k=3),
    Statistic("mmd_spectrum", k=3, cumulative=False),
    Statistic("mmd_spectrum", k=50),
    Statistic("mmd_all_substrings"),
    Statistic("mmd_one_hot"),
    Statistic("l1"),
    Statistic("l2"),
    Statistic("chi_squared"),
]


def slow(statistic, length):
    """The reference's function of two lists of pairs."""
    if not statistic.is_mmd:
        return lambda a, b: reference.count_distance(a, b, statistic.kind)
    kernel = {
        "mmd_hamming": reference.hamming,
        "mmd_one_hot": lambda y, other: float(y == other),
        "mmd_spectrum": reference.spectrum(min(statistic.k, length), statistic.cumulative),
        "mmd_all_substrings": reference.spectrum(length),
    }[statistic.kind]
    by_pairs = statistic.normalisation == "pairs"
    return lambda a, b: reference.mmd(a, b, kernel, by_pairs=by_pairs)


@pytest.mark.parametrize("statistic", ALL, ids=str)
def test_every_split_equals_the_loops_to_1e9(pair, rng, statistic):
    """Unequal sizes, three prompts, ties and padding; observed and permuted."""
    a, b = pair
    orders = np.stack([np.arange(23), *(rng.permutation(23) for _ in range(5))])
    expected = reference.permuted_statistics(a, b, slow(statistic, a.length), orders)
    pool = Pool.of(a, b)
    member = np.zeros(orders.shape, dtype=bool)
    np.put_along_axis(member, orders[:, : len(a)], True, axis=1)
    labels = torch.from_numpy(member)[:, pool.order]
    ours = statistic.pooled(pool.codes, pool.pad)(labels[None])[0]
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)


def test_a_case_by_hand():
    """One prompt, L = 2: kernels 1/2 within a, 0 within b, mean of (0, 1/2, 1/2, 0) across."""
    a = CompletionSample([0, 0], [[1, 2], [1, 3]])
    b = CompletionSample([0, 0], [[4, 2], [5, 3]])
    # Hamming counts: a: {12, 13} agree at one of two positions. b: {42, 53} at none.
    # across: 12-42 agree at the second, 13-53 too, the others nowhere.
    assert mmd_statistic(a, b) == pytest.approx(0.5 - 2 * 0.25 + 0.0)
    assert mmd_statistic(a, b, "one_hot") == 0.0
    assert statistic_of(a, b, "l1") == pytest.approx(2.0)


@pytest.mark.parametrize("statistic", ALL, ids=str)
def test_order_of_rows_and_of_samples_does_not_matter(pair, rng, statistic):
    a, b = pair
    value = statistic_of(a, b, statistic)
    shuffled = a.take(rng.permutation(len(a)).copy())
    assert statistic_of(shuffled, b, statistic) == pytest.approx(value, abs=1e-12)
    assert statistic_of(b, a, statistic) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("statistic", ALL, ids=str)
def test_symbols_may_be_renamed(pair, rng, statistic):
    """Also to codes that float32 cannot hold exactly."""
    names = torch.tensor([2**24 + 1, 2**24 + 2, 7, -1])
    renamed = [CompletionSample(s.prompts, names[s.completions], 3) for s in pair]
    expected = statistic_of(*pair, statistic)
    assert statistic_of(*renamed, statistic) == pytest.approx(expected, abs=1e-12)


def test_a_sample_against_itself_is_negative():
    """Within: mean over i != j; across: over all pairs, which holds the diagonal of ones."""
    rng = np.random.default_rng(1)
    codes = rng.integers(3, size=(8, 5))
    sample = CompletionSample(np.zeros(8, int), codes)
    agree = (codes[:, None] == codes[None]).mean(-1)
    off = (agree.sum() - 8) / 56
    assert mmd_statistic(sample, sample) == pytest.approx(2 * off - 2 * agree.mean())
    assert mmd_statistic(sample, sample) < 0


def test_the_estimate_is_unbiased_for_the_exact_distance():
    """Mean over 200 draws within 3 standard errors of the distance of the marginals."""
    model = MarkovModel.random(4, 8, seed=5)
    other = model.altered("watermark", seed=5)
    exact = exact_hamming_mmd(model, other, length=6)
    rng = np.random.default_rng(6)
    found = [mmd_statistic(model.sample(5, rng, 6), other.sample(5, rng, 6)) for _ in range(200)]
    error = np.std(found, ddof=1) / np.sqrt(200)
    assert exact > 0.02
    assert abs(np.mean(found) - exact) < 3 * error


def test_marginals_are_those_of_the_sampler():
    model = MarkovModel.random(2, 5, seed=1)
    sample = model.sample(20_000, np.random.default_rng(0), 4)
    expected = model.marginals(4)
    for prompt in range(2):
        rows = sample.completions[sample.prompts == prompt].numpy()
        for position in range(4):
            counts = np.bincount(np.where(rows < 0, 5, rows)[:, position], minlength=6)
            np.testing.assert_allclose(counts / 20_000, expected[prompt, position], atol=0.015)


def test_padding_counts_as_agreement_unless_it_is_ignored():
    a = CompletionSample([0, 0], [[1, 2, -1, -1], [1, 3, -1, -1]])
    b = CompletionSample([0, 0], [[1, 2, -1, -1], [1, 2, -1, -1]])
    # with pads: 12 and 13 agree at 3 of 4; without: at 1 of 2
    assert mmd_statistic(a, b) == pytest.approx(0.75 - 2 * 0.875 + 1)
    assert mmd_statistic(a, b, ignore_padding=True) == pytest.approx(0.5 - 2 * 0.75 + 1)


def test_columns_of_padding_change_nothing_but_the_scale():
    """Trailing columns nobody uses are computed as a constant: same as one by one."""
    a = CompletionSample([0, 0], ["ab", "ac"], length=40)
    b = CompletionSample([0, 0], ["ab", "bc"], length=40)
    loops = reference.permuted_statistics(a, b, slow(Statistic(), 40), [range(4)])
    assert mmd_statistic(a, b) == pytest.approx(loops[0], abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_ngrams_with_padding_inside_a_row(rng, k):
    codes = torch.from_numpy(rng.integers(-1, 2, size=(2, 4, 7)))
    for cumulative in (True, False):
        ours = spectrum_kernel(codes, k=k, pad=-1, cumulative=cumulative)
        kernel = reference.spectrum(k, cumulative)
        for draw in range(2):
            rows = [tuple(row) for row in codes[draw].tolist()]
            assert ours[draw].tolist() == [[kernel(y, z) for z in rows] for y in rows]


def test_pairwise_distances_are_those_of_single_pairs(rng):
    model = MarkovModel.random(3, 6, seed=2)
    samples = [model.sample(n, rng, 5) for n in (4, 5, 6)]
    for normalisation in ("pairs", "paper"):
        matrix = pairwise_mmd(samples, Statistic(normalisation=normalisation))
        assert matrix.diagonal().tolist() == [0, 0, 0]
        for i in range(3):
            for j in range(i):
                expected = mmd_statistic(samples[i], samples[j], normalisation=normalisation)
                assert float(matrix[i, j]) == pytest.approx(expected, abs=1e-12)
                assert matrix[i, j] == matrix[j, i]


def test_float32_kernels_give_the_same_to_single_precision(pair):
    pool = Pool.of(*pair)
    exact = Statistic().pooled(pool.codes, pool.pad)
    rounded = PooledMMD([block.float() for block in exact.blocks], "pairs")
    labels = pool.first[None, None]
    assert float(rounded(labels)) == pytest.approx(float(exact(labels)), abs=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("statistic", ALL, ids=str)
def test_gpu_equals_cpu(pair, statistic):
    expected = statistic_of(*pair, statistic)
    moved = [sample.to("cuda") for sample in pair]
    assert statistic_of(*moved, statistic) == pytest.approx(expected, abs=1e-9)
