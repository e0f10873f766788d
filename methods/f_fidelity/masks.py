"""Random numbers for masks, keyed by image, sample and element: batching changes nothing."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_STEP = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's shifts the sign in."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser; products wrap around."""
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def keyed_uniform(
    seed: int, images: Int[Tensor, " batch"], samples: int, elements: int
) -> Float[Tensor, "batch samples elements"]:
    """Uniform numbers in [0, 1), 24 bits each, keyed by (seed, image, sample, element).

    The first n samples are the same however many are drawn, and an image has its numbers in
    whatever batch it comes.
    """
    device = images.device
    key = _mix(images.long() * _STEP + _signed(seed % (1 << 64)))
    n = torch.arange(1, samples + 1, device=device)
    j = torch.arange(1, elements + 1, device=device)
    row = _mix(key[:, None] + n * _STEP)
    return _shift(_mix(row[..., None] + j * _STEP), 40).float() * 2.0**-24
