"""Uniform integer quantisers of activations (a scale per token) and weights (a scale per row)."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from ritornello.methods.rrs.clipping import (
    scale_of_range,
    search_clipping,
    weight_levels,
    weight_range,
)
from ritornello.methods.rrs.config import check_bits, check_finite


class Quantized(NamedTuple):
    """Integers with value = (q - zero) * scale; scale and zero have one entry for each group."""

    q: Int8[Tensor, "*rows channels"]
    scale: Float[Tensor, "*rows groups"]
    zero: Float[Tensor, "*rows groups"]

    def dequantize(self) -> Float[Tensor, "*rows channels"]:
        """The represented values, float32."""
        groups = self.scale.shape[-1]
        grouped = self.q.float().unflatten(-1, (groups, -1))
        return ((grouped - self.zero[..., None]) * self.scale[..., None]).flatten(-2)


def quantize_per_token(
    x: Float[Tensor, "*batch channels"],
    bits: int = 4,
    symmetric: bool = True,
    clip: float = 1.0,
    group_size: int | None = None,
) -> Quantized:
    """Rounds each token to integers with its own scale (sec. 3.1; ties to the even level).

    Symmetric: levels -2^(bits-1) .. 2^(bits-1)-1 and scale = clip * max|x| / (2^(bits-1)-1); a zero
    token has scale 1. Asymmetric: 2^bits levels between the token's smallest and largest value, a
    range that contains 0 unless there are groups; q is shifted so that it fits int8.

    Args:
        x: activations.
        bits: 2 to 8.
        symmetric: whether zero is fixed at level 0.
        clip: fraction of the range that is represented.
        group_size: contiguous channels that share a scale, a divisor of the channels; None for all.

    Raises:
        ValueError: an argument is outside what is accepted, or `x` is not finite.
    """
    check_bits("bits", bits)
    channels = x.shape[-1]
    if group_size is not None and (group_size < 1 or channels % group_size):
        raise ValueError(f"group_size must divide the {channels} channels of x, got {group_size}")
    if not 0 < clip <= 1:
        raise ValueError(f"clip must be in (0, 1], got {clip}")
    check_finite("x", x)
    grouped = x.float().unflatten(-1, (-1, group_size or channels))
    if symmetric:
        q, scale = round_symmetric(grouped, bits, clip)
        zero = torch.zeros_like(scale)
    else:
        q, scale, zero = _round_asymmetric(grouped, bits, clip, with_zero=group_size is None)
    return Quantized(q.to(torch.int8).flatten(-2), scale[..., 0], zero[..., 0])


def round_symmetric(x: Tensor, bits: int, clip: float = 1.0) -> tuple[Tensor, Tensor]:
    """(levels as float, scale) with one scale for the last dimension."""
    levels = 2 ** (bits - 1) - 1
    scale = x.abs().amax(-1, keepdim=True) * clip / levels
    scale = torch.where(scale == 0, 1, scale)
    return torch.round(x / scale).clamp_(-levels - 1, levels), scale


def _round_asymmetric(
    x: Tensor, bits: int, clip: float, with_zero: bool
) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    if with_zero:
        low, high = low.clamp(max=0), high.clamp(min=0)
    low, high = low * clip, high * clip
    empty = (low == 0) & (high == 0)
    low, high = torch.where(empty, -1, low), torch.where(empty, 1, high)
    scale = (high - low) / (2**bits - 1)
    scale = torch.where(scale == 0, 1, scale)
    zero = torch.round(-low / scale)
    q = (torch.round(x / scale) + zero).clamp(0, 2**bits - 1)
    shift = 2 ** (bits - 1)
    return q - shift, scale, zero - shift


def quantize_weight(
    weight: Float[Tensor, "out channels"],
    bits: int = 4,
    *,
    symmetric: bool = True,
    clip_search: bool = True,
    per_channel: bool = True,
    group_size: int | None = None,
) -> Quantized:
    """Rounds a weight matrix to nearest with one scale for each output channel (sec. 3.4).

    Args:
        weight: the matrix of a linear layer.
        bits: 2 to 8.
        symmetric: whether zero is fixed at level 0.
        clip_search: take the range p * [min, max], p = 1, 0.99 .. 0.21, with the smallest sum of
            |error|^2.4 over a row; ignored with groups, whose range is the plain one.
        per_channel: False for one scale of the whole matrix.
        group_size: input channels that share a scale, a divisor of them; None for all.

    Raises:
        ValueError: an argument is outside what is accepted, or `weight` is not finite.
    """
    check_bits("bits", bits)
    check_finite("weight", weight)
    out, channels = weight.shape
    if group_size is not None:
        if group_size < 1 or channels % group_size:
            raise ValueError(
                f"group_size must divide the {channels} channels of weight, got {group_size}"
            )
        clip_search = False
    rows = weight.float()
    if not per_channel:
        rows = rows.reshape(1, -1)
    elif group_size is not None:
        rows = rows.reshape(-1, group_size)
    low, high = weight_range(rows, symmetric=symmetric)
    if clip_search:
        low, high = search_clipping(rows, low, high, bits, symmetric=symmetric)
    scale, zero = scale_of_range(low, high, bits, symmetric=symmetric)
    q = weight_levels(rows, scale, zero, bits, symmetric=symmetric)
    if not symmetric:
        shift = 2 ** (bits - 1)
        q, zero = q - shift, zero - shift
    q = q.to(torch.int8).reshape(out, channels)
    if not per_channel:
        scale, zero = scale.expand(out, 1), zero.expand(out, 1)
    return Quantized(q, scale.reshape(out, -1), zero.reshape(out, -1))
