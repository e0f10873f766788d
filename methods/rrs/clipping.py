"""The range of weights that integers represent: whole, or clipped where that loses less."""

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from ritornello.common.kernels.compiled import build_obstacle, load_library

_PACKAGE, _SOURCE = "ritornello.methods.rrs", "clipping.cpp"
_STEPS = 80
_POWER = 2.4
_SMALLEST_MAGNITUDE = 1e-5


def weight_range(rows: Tensor, *, symmetric: bool) -> tuple[Tensor, Tensor]:
    """(low, high) of each row, with 0 inside; symmetric: high is the largest magnitude."""
    low, high = rows.amin(1, keepdim=True).clamp(max=0), rows.amax(1, keepdim=True).clamp(min=0)
    if symmetric:
        high = torch.maximum(-low, high).clamp(min=_SMALLEST_MAGNITUDE)
        return -high, high
    empty = (low == 0) & (high == 0)
    return torch.where(empty, -1, low), torch.where(empty, 1, high)


def scale_of_range(
    low: Tensor, high: Tensor, bits: int, *, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """(scale, zero) of a range."""
    if symmetric:
        return high / (2 ** (bits - 1) - 1), torch.zeros_like(high)
    scale = (high - low).clamp(min=_SMALLEST_MAGNITUDE) / (2**bits - 1)
    return scale, torch.round(-low / scale)


def weight_levels(
    rows: Tensor, scale: Tensor, zero: Tensor, bits: int, *, symmetric: bool
) -> Tensor:
    """Nearest levels, as float: -2^(bits-1).. if symmetric, else 0..2^bits-1."""
    if symmetric:
        return torch.round(rows / scale).clamp_(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return (torch.round(rows / scale) + zero).clamp_(0, 2**bits - 1)


def search_clipping(
    rows: Float[Tensor, "rows channels"],
    low: Float[Tensor, "rows 1"],
    high: Float[Tensor, "rows 1"],
    bits: int,
    *,
    symmetric: bool,
) -> tuple[Tensor, Tensor]:
    """The range p * [low, high] with the smallest sum of |error|^2.4, each row for itself.

    p runs through 1, 0.99 .. 0.21 (sec. 3.4). Symmetric ranges on the CPU are searched in C++ where
    a compiler is there.
    """
    if symmetric and rows.device.type == "cpu" and build_obstacle(_PACKAGE, _SOURCE) is None:
        share = _compiled_shares(rows, high, bits)
        return share * low, share * high
    best_low, best_high = low.clone(), high.clone()
    # Blocks of rows that stay in the cache.
    step = max(1, (1 << 16) // rows.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        share = best_share(rows[part], low[part], high[part], bits, symmetric=symmetric)
        best_low[part] *= share
        best_high[part] *= share
    return best_low, best_high


def _compiled_shares(
    rows: Float[Tensor, "rows channels"], high: Float[Tensor, "rows 1"], bits: int
) -> Float[Tensor, "rows 1"]:
    rows, high = rows.contiguous(), high.contiguous()
    shares = torch.empty_like(high)
    load_library(_PACKAGE, _SOURCE).search_shares(
        ctypes.c_void_p(rows.data_ptr()),
        ctypes.c_void_p(high.data_ptr()),
        ctypes.c_void_p(shares.data_ptr()),
        ctypes.c_int64(rows.shape[0]),
        ctypes.c_int64(rows.shape[1]),
        ctypes.c_int(2 ** (bits - 1) - 1),
        ctypes.c_int(_STEPS),
        ctypes.c_float(_POWER),
        ctypes.c_int(torch.get_num_threads()),
    )
    return shares


def best_share(
    rows: Float[Tensor, "rows channels"],
    low: Float[Tensor, "rows 1"],
    high: Float[Tensor, "rows 1"],
    bits: int,
    *,
    symmetric: bool,
) -> Float[Tensor, "rows 1"]:
    """The share p of each row's range, by torch operations alone."""
    share = torch.ones_like(high)
    best = torch.full_like(high, torch.inf)
    for i in range(_STEPS):
        p = 1 - i / 100
        scale, zero = scale_of_range(p * low, p * high, bits, symmetric=symmetric)
        q = weight_levels(rows, scale, zero, bits, symmetric=symmetric)
        error = q.sub_(zero).mul_(scale).sub_(rows).abs_().pow_(_POWER).sum(1, True)
        share = torch.where(error < best, p, share)
        best = torch.minimum(error, best)
    return share
