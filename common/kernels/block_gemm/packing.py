"""Two 4-bit integers to a byte: the even column in the low nibble, two's complement."""

import torch
from jaxtyping import Int, Int8, UInt8
from torch import Tensor


def pack_int4(q: Int[Tensor, "*rows columns"]) -> UInt8[Tensor, "*rows columns/2"]:
    """Packs integers in -8..7, of any integer type, along the last dimension.

    Raises:
        ValueError: not integers, an odd number of columns, or a value outside -8..7.
    """
    if q.dtype not in (torch.int8, torch.int16, torch.int32, torch.int64):
        raise ValueError(f"q must be signed integers (int8 ... int64), got {q.dtype}")
    if q.shape[-1] % 2:
        raise ValueError(f"q must have an even number of columns to be packed, got {q.shape[-1]}")
    if q.numel() and (q.min() < -8 or q.max() > 7):
        raise ValueError(f"q must lie in -8..7, got values in {q.min()}..{q.max()}")
    bits = q.to(torch.int8).view(torch.uint8)
    return (bits[..., 0::2] & 15) | (bits[..., 1::2] << 4)


def unpack_int4(packed: UInt8[Tensor, "*rows half"]) -> Int8[Tensor, "*rows 2*half"]:
    """The inverse of `pack_int4`.

    Raises:
        ValueError: not uint8.
    """
    if packed.dtype != torch.uint8:
        raise ValueError(f"packed must be uint8, got {packed.dtype}")
    # An arithmetic shift to the right extends the sign.
    low = (packed << 4).view(torch.int8) >> 4
    high = packed.view(torch.int8) >> 4
    return torch.stack([low, high], dim=-1).flatten(-2)
