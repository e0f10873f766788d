"""The recipe by which golden files name weights and inputs instead of holding them."""

import zlib

import numpy as np


def fill(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform float64 values in [-1, 1) that depend on the name alone."""
    index = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = index * np.uint64(0x9E3779B97F4A7C15) + np.uint64(zlib.crc32(name.encode()))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1).reshape(shape)
