"""Triton kernel: tiles of the weight are loaded through the index list, nothing is copied."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ritornello.common.kernels.dispatch import on_own_device


@triton.jit
def _gather_kernel(
    x_ptr,
    weight_ptr,
    index_ptr,
    out_ptr,
    rows,
    columns,
    inner,
    width,
    COMBINE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
):
    """One tile of out (rows, columns) = x (rows, inner) @ B, B read from weight (*, width).

    COMBINE: B[i, j] = weight[index[i], j]; else B[i, j] = weight[index[j], i].
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.program_id(1).to(tl.int64) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    if not COMBINE:
        chosen = tl.load(index_ptr + column, mask=column < columns, other=0)
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), dtype=tl.float32)
    for start in range(0, inner, BLOCK_INNER):
        i = start + tl.arange(0, BLOCK_INNER)
        left = tl.load(
            x_ptr + row[:, None] * inner + i[None, :],
            mask=(row[:, None] < rows) & (i[None, :] < inner),
            other=0.0,
        )
        inside = (i[:, None] < inner) & (column[None, :] < columns)
        if COMBINE:
            chosen = tl.load(index_ptr + i, mask=i < inner, other=0)
            source = weight_ptr + chosen[:, None] * width + column[None, :]
        else:
            source = weight_ptr + chosen[None, :] * width + i[:, None]
        right = tl.load(source, mask=inside, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(
        out_ptr + row[:, None] * columns + column[None, :],
        total.to(out_ptr.dtype.element_ty),
        mask=(row[:, None] < rows) & (column[None, :] < columns),
    )


@on_own_device
def linear(x: Tensor, weight: Tensor, index: Tensor) -> Tensor:
    """`x @ weight[index].T`, accumulated in float32."""
    return _launch(x, weight, index, len(index), combine=False)


@on_own_device
def combine(x: Tensor, weight: Tensor, index: Tensor) -> Tensor:
    """`x @ weight[index]`, accumulated in float32."""
    return _launch(x, weight, index, weight.shape[1], combine=True)


def _launch(x: Tensor, weight: Tensor, index: Tensor, columns: int, *, combine: bool) -> Tensor:
    x, weight, index = x.contiguous(), weight.contiguous(), index.contiguous()
    rows, inner = x.shape
    out = x.new_empty(rows, columns)
    if not out.numel():
        return out
    # Few rows are a decoding step: small tiles keep more of the GPU busy.
    block_rows, block_columns = (16, 64) if rows <= 64 else (128, 128)
    grid = (triton.cdiv(rows, block_rows), triton.cdiv(columns, block_columns))
    tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    _gather_kernel[grid](
        x,
        weight,
        index,
        out,
        rows,
        columns,
        inner,
        weight.shape[1],
        combine,
        "tf32" if tf32 else "ieee",
        block_rows,
        block_columns,
        32,
        num_warps=4 if block_rows == 16 else 8,  # type: ignore[reportCallIssue]  # launch option
    )
    return out
