"""The quantiser in C++, built at first use: each token is read once and stays in the cache."""

import ctypes

import torch
from torch import Tensor

from ritornello.common.kernels.compiled import build_obstacle, load_library
from ritornello.common.kernels.hadamard import cpu as hadamard

_PACKAGE, _SOURCE = "ritornello.common.kernels.quantize", "quantize.cpp"
# Starting a thread costs tens of microseconds: below this many values one is faster.
_VALUES_PER_THREAD = 1 << 17


def obstacle() -> str | None:
    """Why the compiled quantiser is not to be had; None when it is."""
    return build_obstacle(_PACKAGE, _SOURCE)


def sorted_channel_scale(
    x: Tensor, keep: Tensor | None, group_size: int, normalize_tokens: bool, smallest: float
) -> tuple[Tensor, Tensor]:
    """Channels by falling magnitude (B, C), and the largest of each group (B, G)."""
    batch, tokens, channels = x.shape
    x = x.contiguous().float()
    keep = None if keep is None else keep.contiguous().to(torch.uint8)
    order = torch.empty(batch, channels, dtype=torch.long)
    group_scale = torch.empty(batch, -(-channels // group_size))
    load_library(_PACKAGE, _SOURCE).sorted_channel_scale(
        *_pointers(x, keep, order, group_scale),
        *_sizes(batch, tokens, channels, group_size),
        ctypes.c_int(normalize_tokens),
        ctypes.c_float(smallest),
        ctypes.c_int(_threads(tokens * channels)),
    )
    return order, group_scale


def smooth_quantize(
    x: Tensor, order: Tensor, group_scale: Tensor, group_size: int, levels: int, clip: float
) -> tuple[Tensor, Tensor]:
    """Sorts the channels, divides by their group's scale, rounds to -levels-1..levels a token."""
    batch, tokens, channels = x.shape
    x = x.contiguous().float()
    order, group_scale = order.contiguous(), group_scale.float().contiguous()
    q = torch.empty(batch, tokens, channels, dtype=torch.int8)
    row_scale = torch.empty(batch, tokens)
    load_library(_PACKAGE, _SOURCE).smooth_quantize(
        *_pointers(x, order, group_scale, q, row_scale),
        *_sizes(batch, tokens, channels, group_size),
        ctypes.c_int(levels),
        ctypes.c_float(clip),
        ctypes.c_int(_threads(tokens * channels)),
    )
    return q, row_scale


def rotate_smooth_quantize(
    x: Tensor, order: Tensor, group_scale: Tensor, group_size: int, levels: int, clip: float
) -> tuple[Tensor, Tensor]:
    """`smooth_quantize` of x H / sqrt(channels)."""
    turned = hadamard.transform(x.float(), x.shape[2] ** -0.5, transpose=False)
    return smooth_quantize(turned, order, group_scale, group_size, levels, clip)


def _threads(values: int) -> int:
    return max(1, min(torch.get_num_threads(), values // _VALUES_PER_THREAD))


def _pointers(*tensors: Tensor | None) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(None if t is None else t.data_ptr()) for t in tensors]


def _sizes(*values: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(value) for value in values]
