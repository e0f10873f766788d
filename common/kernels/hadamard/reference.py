"""The transform as a product with the dense matrix: the oracle."""

import torch
from torch import Tensor

from ritornello.common.kernels.hadamard.matrices import hadamard_matrix


def transform(x: Tensor, scale: float, transpose: bool) -> Tensor:
    """`scale * x @ H` over the last dimension, or with H^T; in float32 at least."""
    work = torch.promote_types(x.dtype, torch.float32)
    matrix = hadamard_matrix(x.shape[-1], work).to(x.device)
    return (x.to(work) @ (matrix.T if transpose else matrix) * scale).to(x.dtype)
