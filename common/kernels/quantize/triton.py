"""Triton kernels of the quantiser: two launches instead of a dozen passes."""
# Triton's own types mean something else to a type checker than to its compiler.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from ritornello.common.kernels.dispatch import on_own_device
from ritornello.common.kernels.hadamard.triton import plan, rotate_tile, transform
from ritornello.common.kernels.quantize.reference import sort_scales

_ROWS = 32
_COLUMNS = 128
_CHUNK = 1024


@triton.jit
def _row_maximum(row_ptr, channels, CHUNK: tl.constexpr):
    """Largest magnitude of one token."""
    best = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, channels, CHUNK):
        c = start + tl.arange(0, CHUNK)
        values = tl.load(row_ptr + c, mask=c < channels, other=0.0).to(tl.float32)
        best = tl.maximum(best, tl.abs(values))
    return tl.max(best, axis=0)


@triton.jit
def _token_maximum_kernel(x_ptr, out_ptr, channels, CHUNK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    top = _row_maximum(x_ptr + token * channels, channels, CHUNK)
    tl.store(out_ptr + token, tl.where(top == 0.0, 1.0, top))


@triton.jit
def _channel_absmax_kernel(
    x_ptr,
    keep_ptr,
    divisor_ptr,
    out_ptr,
    tokens,
    channels,
    HAS_KEEP: tl.constexpr,
    HAS_DIVISOR: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    sequence = tl.program_id(2).to(tl.int64)
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = sequence * tokens + t
    inside = (t < tokens)[:, None] & (c < channels)[None, :]
    values = tl.load(x_ptr + row[:, None] * channels + c[None, :], mask=inside, other=0.0)
    values = tl.abs(values.to(tl.float32))
    if HAS_KEEP:
        keep = tl.load(keep_ptr + row, mask=t < tokens, other=0)
        values = tl.where((keep != 0)[:, None], values, 0.0)
    if HAS_DIVISOR:
        values = values / tl.load(divisor_ptr + row, mask=t < tokens, other=1.0)[:, None]
    top = tl.max(values, axis=0)
    tl.atomic_max(out_ptr + sequence * channels + c, top, mask=c < channels)


@on_own_device
def channel_absmax(x: Tensor, keep: Tensor | None, normalize_tokens: bool) -> Tensor:
    """Largest |x| of each channel over the tokens: (B, T, C) to (B, C)."""
    x = x.contiguous()
    batch, tokens, channels = x.shape
    out = torch.zeros(batch, channels, device=x.device)
    divisor = out
    if normalize_tokens:
        divisor = torch.empty(batch, tokens, device=x.device)
        _token_maximum_kernel[(batch * tokens,)](x, divisor, channels, _CHUNK)
    kept = out if keep is None else keep.contiguous().to(torch.uint8)
    grid = (triton.cdiv(tokens, _ROWS), triton.cdiv(channels, _COLUMNS), batch)
    _channel_absmax_kernel[grid](
        x,
        kept,
        divisor,
        out,
        tokens,
        channels,
        HAS_KEEP=keep is not None,
        HAS_DIVISOR=normalize_tokens,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
    )
    return out


def sorted_channel_scale(
    x: Tensor, keep: Tensor | None, group_size: int, normalize_tokens: bool, smallest: float
) -> tuple[Tensor, Tensor]:
    """Channels by falling magnitude (B, C), and the largest of each group (B, G)."""
    return sort_scales(channel_absmax(x, keep, normalize_tokens), group_size, smallest)


@triton.jit
def _half_even(value):
    """Rounds |value| <= 2^22 to the nearest integer, ties to even, by the float's own rounding."""
    magic = 12582912.0
    return (value + magic) - magic


@triton.jit
def _smooth_quantize_kernel(
    x_ptr,
    order_ptr,
    scale_ptr,
    q_ptr,
    row_scale_ptr,
    tokens,
    channels,
    groups,
    group_size,
    levels,
    clip,
    CHUNK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    sequence = token // tokens
    row_ptr = x_ptr + token * channels
    order_ptr += sequence * channels
    scale_ptr += sequence * groups
    best = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, channels, CHUNK):
        c = start + tl.arange(0, CHUNK)
        inside = c < channels
        place = tl.load(order_ptr + c, mask=inside, other=0)
        scale = tl.load(scale_ptr + c // group_size, mask=inside, other=1.0)
        values = tl.load(row_ptr + place, mask=inside, other=0.0).to(tl.float32)
        best = tl.maximum(best, tl.abs(tl.div_rn(values, scale)))
    step = tl.div_rn(tl.max(best, axis=0) * clip, levels)
    step = tl.where(step == 0.0, 1.0, step)
    tl.store(row_scale_ptr + token, step)
    # The second reading of the row comes from the cache.
    for start in range(0, channels, CHUNK):
        c = start + tl.arange(0, CHUNK)
        inside = c < channels
        place = tl.load(order_ptr + c, mask=inside, other=0)
        scale = tl.load(scale_ptr + c // group_size, mask=inside, other=1.0)
        values = tl.load(row_ptr + place, mask=inside, other=0.0).to(tl.float32)
        level = _half_even(tl.div_rn(tl.div_rn(values, scale), step))
        level = tl.minimum(tl.maximum(level, -levels - 1.0), levels)
        tl.store(q_ptr + token * channels + c, level.to(tl.int8), mask=inside)


@on_own_device
def smooth_quantize(
    x: Tensor, order: Tensor, group_scale: Tensor, group_size: int, levels: int, clip: float
) -> tuple[Tensor, Tensor]:
    """Sorts the channels, divides by their group's scale, rounds to -levels-1..levels a token."""
    x = x.contiguous()
    batch, tokens, channels = x.shape
    q = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    row_scale = torch.empty(batch, tokens, device=x.device)
    _smooth_quantize_kernel[(batch * tokens,)](
        x,
        order.contiguous(),
        group_scale.float().contiguous(),
        q,
        row_scale,
        tokens,
        channels,
        group_scale.shape[1],
        group_size,
        float(levels),
        clip,
        CHUNK=_CHUNK,
    )
    return q, row_scale


@triton.jit
def _rotate_smooth_quantize_kernel(
    x_ptr,
    base_ptr,
    rank_ptr,
    scale_ptr,
    q_ptr,
    row_scale_ptr,
    tokens,
    groups,
    group_size,
    factor,
    levels,
    clip,
    ORDER: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    FUSED_BASE: tl.constexpr,
):
    """One token: turned in registers, divided, rounded and stored at its sorted places."""
    POWER: tl.constexpr = 1 << STAGES
    token = tl.program_id(0).to(tl.int64)
    sequence = token // tokens
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, POWER)[None, :]
    inside = (row < ORDER) & (column < POWER)
    channel = row * POWER + column
    channels = ORDER * POWER
    x = tl.load(x_ptr + token * channels + channel, mask=inside, other=0.0).to(tl.float32)
    square = tl.arange(0, ROWS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    turned = rotate_tile(x, tl.load(base_ptr + square), ROWS, STAGES, FUSED_BASE) * factor
    place = tl.load(rank_ptr + sequence * channels + channel, mask=inside, other=0)
    scale = tl.load(scale_ptr + sequence * groups + place // group_size, mask=inside, other=1.0)
    smoothed = tl.where(inside, tl.div_rn(turned, scale), 0.0)
    step = tl.div_rn(tl.max(tl.max(tl.abs(smoothed), axis=1), axis=0) * clip, levels)
    step = tl.where(step == 0.0, 1.0, step)
    tl.store(row_scale_ptr + token, step)
    level = _half_even(tl.div_rn(smoothed, step))
    level = tl.minimum(tl.maximum(level, -levels - 1.0), levels)
    tl.store(q_ptr + token * channels + place, level.to(tl.int8), mask=inside)


@on_own_device
def rotate_smooth_quantize(
    x: Tensor, order: Tensor, group_scale: Tensor, group_size: int, levels: int, clip: float
) -> tuple[Tensor, Tensor]:
    """`smooth_quantize` of x H / sqrt(channels); in two kernels where the base is large."""
    x = x.contiguous()
    batch, tokens, channels = x.shape
    factor = channels**-0.5
    matrix, order_of_base, power, fused, warps = plan(channels, False, x.device)
    if not fused:
        turned = transform(x.float(), factor, transpose=False)
        return smooth_quantize(turned, order, group_scale, group_size, levels, clip)
    q = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    row_scale = torch.empty(batch, tokens, device=x.device)
    _rotate_smooth_quantize_kernel[(batch * tokens,)](
        x,
        matrix,
        order.argsort(dim=1),
        group_scale.float().contiguous(),
        q,
        row_scale,
        tokens,
        group_scale.shape[1],
        group_size,
        factor,
        float(levels),
        clip,
        ORDER=order_of_base,
        ROWS=len(matrix),
        STAGES=power.bit_length() - 1,
        FUSED_BASE=order_of_base > 1,
        num_warps=warps,
    )
    return q, row_scale
