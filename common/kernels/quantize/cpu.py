"""The quantiser in C++, built at first use: each token is read once and stays in the cache."""

import ctypes
import functools

import torch
from torch import Tensor

from ritornello.common.kernels.compiled import build_obstacle, load_library
from ritornello.common.kernels.hadamard import cpu as hadamard

_PACKAGE, _SOURCE = "ritornello.common.kernels.quantize", "quantize.cpp"
_POINTER, _SIZE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
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
    _library().sorted_channel_scale(
        x.data_ptr(),
        None if keep is None else keep.data_ptr(),
        order.data_ptr(),
        group_scale.data_ptr(),
        batch,
        tokens,
        channels,
        group_size,
        normalize_tokens,
        smallest,
        _threads(tokens * channels),
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
    _library().smooth_quantize(
        x.data_ptr(),
        order.data_ptr(),
        group_scale.data_ptr(),
        q.data_ptr(),
        row_scale.data_ptr(),
        batch,
        tokens,
        channels,
        group_size,
        levels,
        clip,
        _threads(tokens * channels),
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


@functools.cache
def _library() -> ctypes.CDLL:
    library = load_library(_PACKAGE, _SOURCE)
    sizes = [_SIZE] * 4
    library.sorted_channel_scale.argtypes = [*[_POINTER] * 4, *sizes, _INT, _FLOAT, _INT]
    library.smooth_quantize.argtypes = [*[_POINTER] * 5, *sizes, _INT, _FLOAT, _INT]
    return library
