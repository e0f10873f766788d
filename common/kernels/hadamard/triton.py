"""Triton kernel: butterflies over the powers of two, one small dense product for the base."""
# Triton's own types mean something else to a type checker than to its compiler.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ritornello.common.kernels.dispatch import on_own_device
from ritornello.common.kernels.hadamard.matrices import hadamard_factors, hadamard_matrix

# A larger base does not fit beside the tile in registers; a library product does it better.
_LARGEST_FUSED_BASE = 64
# Larger tiles spill registers and want more shared memory than the smaller GPUs have.
_LARGEST_TILE = 8192


@triton.jit
def rotate_tile(
    x,
    base_matrix,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    FUSED_BASE: tl.constexpr,
):
    """Transforms one vector laid out as (ROWS, 2^STAGES): butterflies, then the base.

    `base_matrix` is the transposed base, zero-padded to (ROWS, ROWS).
    """
    POWER: tl.constexpr = 1 << STAGES
    # A stage pairs neighbours and puts all sums before all differences. After STAGES stages every
    # bit of the index was the lowest once and the order is the natural one again.
    for _ in tl.static_range(STAGES):
        first, second = tl.split(tl.reshape(x, (ROWS, POWER // 2, 2)))
        pairs = tl.join(first + second, first - second)
        x = tl.reshape(tl.permute(pairs, (0, 2, 1)), (ROWS, POWER))
    if FUSED_BASE:
        x = tl.dot(base_matrix, x, input_precision="ieee")
    return x


@triton.jit
def _transform_kernel(
    x_ptr,
    base_ptr,
    out_ptr,
    scale,
    ORDER: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    FUSED_BASE: tl.constexpr,
):
    POWER: tl.constexpr = 1 << STAGES
    vector = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, POWER)[None, :]
    inside = row < ORDER
    offset = vector * (ORDER * POWER) + row * POWER + column
    x = tl.load(x_ptr + offset, mask=inside & (column < POWER), other=0.0).to(tl.float32)
    square = tl.arange(0, ROWS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    base = tl.load(base_ptr + square)
    y = rotate_tile(x, base, ROWS, STAGES, FUSED_BASE) * scale
    tl.store(out_ptr + offset, y.to(out_ptr.dtype.element_ty), mask=inside & (column < POWER))


class Plan(NamedTuple):
    """How programs share out a transform of one order."""

    matrix: Tensor  # transposed dense factor, padded with zeros to what tl.dot takes when fused
    order: int  # of the dense factor
    power: int  # the power of two that a program turns by butterflies
    fused: bool  # whether one program holds a whole vector
    warps: int


@functools.lru_cache(maxsize=64)
def plan(n: int, transpose: bool, device: torch.device) -> Plan:
    """Butterflies of at most `_LARGEST_TILE` values; beside them the dense factor if small."""
    base, power = hadamard_factors(n)
    rows = max(16, triton.next_power_of_2(base)) if base > 1 else 1
    narrow = base > 1 and (base > _LARGEST_FUSED_BASE or power < 16)
    fused = not narrow and rows * power <= _LARGEST_TILE
    if not fused:
        power = min(power, _LARGEST_TILE)
        rows = n // power
    order = n // power
    matrix = hadamard_matrix(order).to(device)
    padded = torch.zeros(rows, rows, device=device)
    padded[:order, :order] = matrix if transpose else matrix.T
    tile = rows * power if fused else power
    return Plan(padded, order, power, fused, warps=min(16, max(4, tile // 512)))


@on_own_device
def transform(x: Tensor, scale: float, transpose: bool) -> Tensor:
    """`scale * x @ H` over the last dimension; accumulates in float32."""
    n = x.shape[-1]
    matrix, order, power, fused, warps = plan(n, transpose, x.device)
    stages = power.bit_length() - 1
    flat = x.reshape(-1, n).contiguous()
    if fused:
        out = torch.empty_like(flat)
        if len(flat):
            _transform_kernel[(len(flat),)](
                flat, matrix, out, scale, order, len(matrix), stages, order > 1, num_warps=warps
            )
        return out.view(x.shape)
    inner = torch.empty_like(flat, dtype=torch.float32)
    if len(flat):
        _transform_kernel[(len(flat) * order,)](
            flat, matrix, inner, scale, 1, 1, stages, False, num_warps=warps
        )
    return torch.matmul(matrix, inner.view(-1, order, power)).view(x.shape).to(x.dtype)
