"""Triton kernel of the block-scaled product on 8-bit tensor cores."""
# Triton's own types mean something else to a type checker than to its compiler.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from ritornello.common.kernels.dispatch import on_own_device


@triton.jit
def _matmul_kernel(
    q_ptr,
    weight_ptr,
    order_ptr,
    group_scale_ptr,
    row_scale_ptr,
    weight_scale_ptr,
    out_ptr,
    tokens,
    channels,
    outputs,
    groups,
    group_size,
    PACKED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sequence = tl.program_id(2).to(tl.int64)
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    o = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    q_ptr += sequence * tokens * channels
    order_ptr += sequence * channels
    group_scale_ptr += sequence * groups
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, channels, BLOCK):
        k = start + tl.arange(0, BLOCK)
        inside = k < channels
        place = tl.load(order_ptr + k, mask=inside, other=0)
        q = tl.load(
            q_ptr + t[:, None] * channels + k[None, :],
            mask=(t < tokens)[:, None] & inside[None, :],
            other=0,
        )
        mask = inside[:, None] & (o < outputs)[None, :]
        if PACKED:
            half = channels // 2
            byte = tl.load(
                weight_ptr + o[None, :] * half + (place // 2)[:, None], mask=mask, other=0
            )
            nibble = (byte.to(tl.int32) >> ((place % 2) * 4).to(tl.int32)[:, None]) & 15
            weight = ((nibble ^ 8) - 8).to(tl.int8)
        else:
            weight = tl.load(
                weight_ptr + o[None, :] * channels + place[:, None], mask=mask, other=0
            )
        # All channels of this block lie in one group: its 32-bit sums share one scale.
        scale = tl.load(group_scale_ptr + start // group_size)
        total += scale * tl.dot(q, weight, out_dtype=tl.int32).to(tl.float32)
    row_scale = tl.load(row_scale_ptr + sequence * tokens + t, mask=t < tokens, other=0.0)
    weight_scale = tl.load(weight_scale_ptr + o, mask=o < outputs, other=0.0)
    out = total * row_scale[:, None] * weight_scale[None, :]
    tl.store(
        out_ptr + sequence * tokens * outputs + t[:, None] * outputs + o[None, :],
        out,
        mask=(t < tokens)[:, None] & (o < outputs)[None, :],
    )


@on_own_device
def block_scaled_matmul(
    q: Tensor,
    weight: Tensor,
    order: Tensor,
    group_scale: Tensor,
    row_scale: Tensor,
    weight_scale: Tensor,
    group_size: int,
) -> Tensor:
    """y[t,o] = a[t] w[o] sum_b s_b sum_{j in b} q[t,j] W[o, order[j]]."""
    batch, tokens, channels = q.shape
    outputs = len(weight)
    out = torch.empty(batch, tokens, outputs, device=q.device)
    if not out.numel():
        return out
    # The largest of 128, 64 and 32 channels that never straddles two groups.
    block = next((b for b in (128, 64) if group_size % b == 0 or group_size >= channels), 32)
    rows = 16 if tokens <= 16 else 64
    grid = (triton.cdiv(tokens, rows), triton.cdiv(outputs, 64), batch)
    _matmul_kernel[grid](
        q.contiguous(),
        weight.contiguous(),
        order.contiguous(),
        group_scale.float().contiguous(),
        row_scale.float().contiguous(),
        weight_scale.float().contiguous(),
        out,
        tokens,
        channels,
        outputs,
        group_scale.shape[1],
        group_size,
        PACKED=weight.dtype == torch.uint8,
        ROWS=rows,
        COLUMNS=64,
        BLOCK=block,
    )
    return out
