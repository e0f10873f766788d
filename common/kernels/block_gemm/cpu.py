"""The product on the processor's 8-bit multiply-add instructions, 32-bit sums in every block."""

import torch
from torch import Tensor

# Rows whose float sums stay in the cache between two blocks.
_ROWS = 256


def block_scaled_matmul(
    q: Tensor,
    weight: Tensor,
    order: Tensor,
    group_scale: Tensor,
    row_scale: Tensor,
    weight_scale: Tensor,
    group_size: int,
) -> Tensor:
    """y[t,o] = a[t] w[o] sum_b s_b sum_{j in b} q[t,j] W[o, order[j]].

    `weight` is fastest as the transposed view of a contiguous (C, O) matrix: sorting its channels
    then copies whole rows.
    """
    batch, tokens, _ = q.shape
    by_channel = weight.t().contiguous()
    out = q.new_empty(batch, tokens, len(weight), dtype=torch.float32)
    for b in range(batch):
        sorted_weight = by_channel.index_select(0, order[b])
        scales = group_scale[b].tolist()
        for start in range(0, tokens, _ROWS):
            rows = slice(start, start + _ROWS)
            total = out[b, rows]
            for block, scale in enumerate(scales):
                span = slice(block * group_size, (block + 1) * group_size)
                sums = torch._int_mm(q[b, rows, span].contiguous(), sorted_weight[span]).float()
                if block == 0:
                    torch.mul(sums, scale, out=total)
                else:
                    total.add_(sums, alpha=scale)
            total.mul_(row_scale[b, rows, None]).mul_(weight_scale)
    return out
