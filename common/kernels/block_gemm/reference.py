"""The product block by block with 64-bit sums: the oracle."""

import torch
from torch import Tensor


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
    sequences = []
    for b in range(len(q)):
        total = torch.zeros(q.shape[1], len(weight), device=q.device)
        sorted_weight = weight[:, order[b]].long()
        for block, scale in enumerate(group_scale[b]):
            span = slice(block * group_size, (block + 1) * group_size)
            products = q[b, :, span, None].long() * sorted_weight[:, span].T[None]
            total += scale * products.sum(1)
        sequences.append(total * row_scale[b, :, None] * weight_scale)
    return torch.stack(sequences)
