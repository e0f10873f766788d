"""Triton kernel: butterflies over the powers of two, one small dense product for the base."""
# Triton's own types mean something else to a type checker than to its compiler.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ritornello.common.kernels.hadamard.matrices import hadamard_factors, hadamard_matrix

# A larger base would not fit beside the tile in registers; a library product does it better.
_LARGEST_FUSED_BASE = 64


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


@functools.lru_cache(maxsize=64)
def padded_base(n: int, transpose: bool, device: torch.device) -> tuple[Tensor, int]:
    """(transposed base padded with zeros to a size that tl.dot takes, power of two) of order n."""
    base, power = hadamard_factors(n)
    rows = max(16, triton.next_power_of_2(base)) if base > 1 else 1
    padded = torch.zeros(rows, rows, device=device)
    matrix = hadamard_matrix(base).to(device)
    padded[:base, :base] = matrix if transpose else matrix.T
    return padded, power


def fuses_base(n: int) -> bool:
    """Whether one program holds a whole vector of order n: small base, tile wide enough."""
    base, power = hadamard_factors(n)
    return base == 1 or (base <= _LARGEST_FUSED_BASE and power >= 16)


def transform(x: Tensor, scale: float, transpose: bool) -> Tensor:
    """`scale * x @ H` over the last dimension; accumulates in float32."""
    n = x.shape[-1]
    padded, power = padded_base(n, transpose, x.device)
    order = n // power
    fused = fuses_base(n)
    stages = power.bit_length() - 1
    flat = x.reshape(-1, n).contiguous()
    if fused:
        out = torch.empty_like(flat)
        if len(flat):
            warps = 8 if n >= 4096 else 4
            _transform_kernel[(len(flat),)](
                flat, padded, out, scale, order, len(padded), stages, order > 1, num_warps=warps
            )
        return out.view(x.shape)
    inner = torch.empty_like(flat, dtype=torch.float32)
    if len(flat):
        one = padded[:1, :1]
        _transform_kernel[(len(flat) * order,)](flat, one, inner, scale, 1, 1, stages, False)
    base = padded[:order, :order]
    return torch.matmul(base, inner.view(-1, order, power)).view(x.shape).to(x.dtype)
