"""The quantiser pass by pass: the oracle, and the path without a compiler."""

import torch
from torch import Tensor

from ritornello.common.kernels.hadamard import reference as hadamard


def channel_absmax(x: Tensor, keep: Tensor | None, normalize_tokens: bool) -> Tensor:
    """Largest |x| of each channel over the tokens: (B, T, C) to (B, C)."""
    magnitude = x.float().abs()
    if keep is not None:
        magnitude = magnitude * keep[:, :, None]
    if normalize_tokens:
        row = magnitude.amax(dim=2, keepdim=True)
        magnitude = magnitude / torch.where(row == 0, 1, row)
    return magnitude.amax(dim=1)


def sorted_channel_scale(
    x: Tensor, keep: Tensor | None, group_size: int, normalize_tokens: bool, smallest: float
) -> tuple[Tensor, Tensor]:
    """Channels by falling magnitude (B, C), and the largest of each group (B, G)."""
    return sort_scales(channel_absmax(x, keep, normalize_tokens), group_size, smallest)


def sort_scales(absmax: Tensor, group_size: int, smallest: float) -> tuple[Tensor, Tensor]:
    """Sorts channel maxima (B, C); the first channel of a run has its largest scale."""
    descending, order = absmax.clamp(min=smallest).sort(dim=1, descending=True, stable=True)
    return order, descending[:, ::group_size].contiguous()


def smooth_quantize(
    x: Tensor, order: Tensor, group_scale: Tensor, group_size: int, levels: int, clip: float
) -> tuple[Tensor, Tensor]:
    """Sorts the channels, divides by their group's scale, rounds to -levels-1..levels a token."""
    batch, tokens, channels = x.shape
    index = order[:, None, :].expand(batch, tokens, channels)
    scale = group_scale.repeat_interleave(group_size, dim=1)[:, None, :channels]
    smoothed = x.float().gather(2, index) / scale
    row_scale = smoothed.abs().amax(dim=2, keepdim=True) * clip / levels
    row_scale = torch.where(row_scale == 0, 1, row_scale)
    q = torch.round(smoothed / row_scale).clamp(-levels - 1, levels)
    return q.to(torch.int8), row_scale[..., 0]


def rotate_smooth_quantize(
    x: Tensor, order: Tensor, group_scale: Tensor, group_size: int, levels: int, clip: float
) -> tuple[Tensor, Tensor]:
    """`smooth_quantize` of x H / sqrt(channels)."""
    turned = hadamard.transform(x.float(), x.shape[2] ** -0.5, transpose=False)
    return smooth_quantize(turned, order, group_scale, group_size, levels, clip)
