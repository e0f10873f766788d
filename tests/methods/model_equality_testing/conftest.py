"""Random samples with repeated completions, ties and padding."""

import numpy as np
import pytest

from ritornello.methods.model_equality_testing import CompletionSample


def random_sample(rng, n, *, prompts=3, length=6, symbols=3):
    """n pairs; lengths vary, the rest is padding."""
    codes = rng.integers(symbols, size=(n, length))
    ends = rng.integers(1, length + 1, size=n)
    codes[np.arange(length) >= ends[:, None]] = -1
    return CompletionSample(rng.integers(prompts, size=n), codes, prompts)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def pair(rng):
    return random_sample(rng, 14), random_sample(rng, 9)
