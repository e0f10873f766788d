"""The transform as two small matrix products: H = A kron B of nearly equal sizes."""

import functools

import torch
from torch import Tensor

from ritornello.common.kernels.hadamard.matrices import (
    hadamard_factors,
    hadamard_matrix,
    sylvester_matrix,
)

# Values that stay in the second-level cache between the two products.
_CACHED_VALUES = 1 << 17


def transform(x: Tensor, scale: float, transpose: bool) -> Tensor:
    """`scale * x @ (A kron B)`: for each row, viewed as a matrix X, the product A^T X B.

    n (a + b) multiplications a row instead of n^2, in blocks of rows that stay in the cache.
    """
    n = x.shape[-1]
    work = torch.promote_types(x.dtype, torch.float32)
    left, right = _factors(n, scale, transpose, work, x.device)
    rows = x.reshape(-1, n).to(work).contiguous()
    out = torch.empty_like(rows)
    a, b = len(left), len(right)
    step = max(1, _CACHED_VALUES // n)
    buffer = rows.new_empty(min(step, len(rows)) * a, b)
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        inner = torch.mm(block.view(-1, b), right, out=buffer[: len(block) * a])
        target = out[start : start + step].view(-1, a, b)
        torch.bmm(left.expand(len(block), a, a), inner.view(-1, a, b), out=target)
    return out.view(x.shape).to(x.dtype)


@functools.lru_cache(maxsize=64)
def _factors(
    n: int, scale: float, transpose: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(A^T, scale * B); the base goes to A together with half of the powers of two."""
    _, power = hadamard_factors(n)
    right_order = 1
    while right_order < power and (right_order * 2) ** 2 <= 2 * n:
        right_order *= 2
    left = hadamard_matrix(n // right_order, dtype)
    right = sylvester_matrix(right_order).to(dtype) * scale
    # The Sylvester factor is symmetric: only A tells H from its transpose.
    left = left if transpose else left.T
    return left.contiguous().to(device), right.to(device)
