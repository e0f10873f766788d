"""Every documented error, and the edges that are none."""

import numpy as np
import pytest
import torch

from ritornello.methods.model_equality_testing import (
    AuditSettings,
    CompletionDistribution,
    CompletionSample,
    Statistic,
    bootstrap_null,
    encode_tokens,
    encode_unicode,
    estimate_power,
    goodness_of_fit_test,
    mmd_statistic,
    pad_after_end,
    pairwise_mmd,
    two_sample_test,
)

EMPTY = torch.zeros(0, 3, dtype=torch.long)
CERTAIN = CompletionDistribution([0.5, 0.5], [[[0, 1, 2]]] * 2, [[1.0]] * 2)


def sample(prompts=(0, 0, 1, 1), length=3, num_prompts=2):
    codes = np.arange(len(prompts) * length).reshape(len(prompts), length)
    return CompletionSample(list(prompts), codes, num_prompts)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: two_sample_test(sample(), sample(length=4)), "same length, got 3 and 4"),
        (lambda: two_sample_test(sample(), sample(num_prompts=3)), "same num_prompts"),
        (lambda: two_sample_test(sample(), sample((0,))), "at least 2 pairs, got 1"),
        (lambda: two_sample_test(sample((0, 1)), sample((0, 1))), "no prompt repeats"),
        (lambda: two_sample_test(sample(), sample(), "hamming"), "statistic must be one of"),
        (lambda: two_sample_test(sample(), sample(), n_resamples=0), "n_resamples"),
        (lambda: bootstrap_null(lambda n, rng: sample(), (4, 4), n_resamples=0), "n_resamples"),
        (lambda: goodness_of_fit_test(sample((0, 0)), CERTAIN, n_resamples=0), "n_resamples"),
        (lambda: two_sample_test(sample(), sample(), method="x"), "method must be"),
        (lambda: two_sample_test(sample(), sample()).rejects(1.0), "alpha must be in"),
        (lambda: mmd_statistic(sample(), sample(), "gram"), "kernel must be one of"),
        (lambda: Statistic(k=0), "k must be >= 1"),
        (lambda: Statistic(normalisation="x"), "normalisation must be"),
        (lambda: mmd_statistic(sample(), sample(), "spectrum", 9, False), "k=9 exceeds"),
        (lambda: pairwise_mmd([sample()]), "needs two samples"),
        (lambda: pairwise_mmd([sample(), sample()], "l1"), "an mmd statistic"),
        (lambda: sample((0, 5)), "prompts must lie in"),
        (lambda: sample((-1, 0)), "prompts must lie in"),
        (lambda: CompletionSample([0], [[0.5]]), "completions must be integers"),
        (lambda: CompletionSample([0], [0]), "must have 2 dimensions"),
        (lambda: CompletionSample([0, 0], [[1]]), "same number of rows, got 2 and 1"),
        (lambda: CompletionSample(EMPTY[:, 0], EMPTY), "at least one row"),
        (lambda: CompletionSample([0], [[1]], length=3), "length=3 is for strings"),
        (lambda: sample().truncate(4), "length must be in"),
        (lambda: encode_unicode([]), "at least one string"),
        (lambda: encode_unicode("abc"), "sequence of at least one string"),
        (lambda: encode_unicode(["abc"], 2, truncate=False), "more than length=2"),
        (lambda: encode_unicode(["abc"], 0), "length must be >= 1"),
        (lambda: encode_tokens([], 3), "at least one"),
        (lambda: estimate_power(sample(), sample(), 1), "must be >= 2"),
        (lambda: estimate_power(sample(), sample(), 2, alpha=0), "alpha must be in"),
        (lambda: AuditSettings(alpha=0.01, n_resamples=50), "can never give p <= alpha"),
        (lambda: AuditSettings(temperature=0), "temperature must be > 0"),
        (lambda: AuditSettings(repeats=0), "repeats and length"),
        (lambda: CompletionDistribution([1.0], [[[0]]], [[0.5]]), "sum to 1"),
        (lambda: CompletionDistribution([0.5, 0.5], [[[0]]], [[1.0]]), "one entry a prompt"),
        (lambda: CompletionDistribution([1.0], [[0, 1]], [[0.5, 0.5]]), r"must be \(K, L\)"),
    ],
)
def test_bad_input_gets_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_only_empty_completions():
    blank = CompletionSample([0, 0], ["", ""], length=4)
    assert mmd_statistic(blank, blank) == 0.0
    with pytest.raises(ValueError, match="all completions are empty"):
        mmd_statistic(blank, blank, ignore_padding=True)


def test_a_prompt_with_nothing_but_empty_completions_counts_as_the_others():
    a = CompletionSample([0, 0, 1, 1], ["", "", "ab", "ab"], length=4)
    b = CompletionSample([0, 0, 1, 1], ["", "", "ab", "xb"], length=4)
    # pairs of prompt 0 have similarity 0; of prompt 1 in a, across, in b: 1, 3/4, 1/2
    expected = 1 / 2 - 2 * 3 / 8 + 1 / 4
    assert mmd_statistic(a, b, ignore_padding=True) == pytest.approx(expected)
    distances = pairwise_mmd([a, b], Statistic(ignore_padding=True))
    assert float(distances[0, 1]) == pytest.approx(expected)


def test_arrays_may_run_backwards_and_have_another_byte_order():
    codes = np.arange(12).reshape(4, 3)
    for given in (codes[::-1][::-1], codes.astype(">i4"), np.asfortranarray(codes)):
        assert CompletionSample(np.arange(4)[::-1], given).completions.tolist() == codes.tolist()


def test_one_empty_completion_among_others():
    a = CompletionSample([0, 0], ["", "ab"], length=4)
    b = CompletionSample([0, 0], ["ab", "ab"], length=4)
    assert mmd_statistic(a, b, ignore_padding=True) == pytest.approx(0 - 2 * 0.5 + 1)


def test_strings_become_code_points():
    codes = encode_unicode(["", "é", "e\u0301", "\U0001f600 ", "\ud800"], 3)
    assert codes.tolist() == [
        [-1, -1, -1],  # nothing
        [233, -1, -1],  # one code point
        [101, 769, -1],  # the same, spelled with a combining accent
        [128512, 32, -1],  # an emoji is one code, a blank at the end stays
        [55296, -1, -1],  # a lone surrogate
    ]
    assert encode_unicode(["e\u0301"], nfc=True).tolist() == [[233]]
    assert encode_unicode(["abcd"], 2).tolist() == [[97, 98]]
    assert encode_unicode([""]).tolist() == [[-1]]


def test_everything_after_the_first_end_becomes_padding():
    rows = torch.tensor([[5, 2, 7, 2], [2, 7, 7, 7], [5, 6, 7, 8]])
    expected = [[5, 2, -1, -1], [2, -1, -1, -1], [5, 6, 7, 8]]
    assert pad_after_end(rows, [2]).tolist() == expected
    expected[1] = [2, 7, 7, 7]
    assert pad_after_end(rows, [2], official=True).tolist() == expected


def test_token_sequences_are_cut_and_padded():
    assert encode_tokens([[1, 2, 3], [4], []], 2).tolist() == [[1, 2], [4, -1], [-1, -1]]
