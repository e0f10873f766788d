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


def channel_absmax(x: Tensor, keep: Tensor | None, normalize_tokens: bool) -> Tensor:
    """Largest |x| of each channel over the tokens: (B, T, C) to (B, C)."""
    batch, tokens, channels = x.shape
    x = x.contiguous().float()
    keep = None if keep is None else keep.contiguous().to(torch.uint8)
    threads = _threads(tokens * channels)
    partial = x.new_zeros(batch, threads, channels)
    function = load_library(_PACKAGE, _SOURCE).channel_absmax
    for b in range(batch):
        function(
            _pointer(x[b]),
            None if keep is None else _pointer(keep[b]),
            _pointer(partial[b]),
            ctypes.c_int64(tokens),
            ctypes.c_int64(channels),
            ctypes.c_int(normalize_tokens),
            ctypes.c_int(threads),
        )
    return partial.amax(dim=1)


def smooth_quantize(
    x: Tensor, order: Tensor, group_scale: Tensor, group_size: int, levels: int, clip: float
) -> tuple[Tensor, Tensor]:
    """Sorts the channels, divides by their group's scale, rounds to -levels-1..levels a token."""
    batch, tokens, channels = x.shape
    x = x.contiguous().float()
    order, group_scale = order.contiguous(), group_scale.float().contiguous()
    q = torch.empty(batch, tokens, channels, dtype=torch.int8)
    row_scale = torch.empty(batch, tokens)
    function = load_library(_PACKAGE, _SOURCE).smooth_quantize
    for b in range(batch):
        function(
            _pointer(x[b]),
            _pointer(order[b]),
            _pointer(group_scale[b]),
            _pointer(q[b]),
            _pointer(row_scale[b]),
            ctypes.c_int64(tokens),
            ctypes.c_int64(channels),
            ctypes.c_int64(group_size),
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


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
