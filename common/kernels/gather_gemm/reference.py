"""The two products as they are written down: one chosen row at a time."""

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, index: Tensor) -> Tensor:
    """out[n, k] = sum_d x[n, d] weight[index[k], d], accumulated in float32 at least."""
    work = torch.promote_types(x.dtype, torch.float32)
    out = x.new_empty(len(x), len(index))
    for k, row in enumerate(index.tolist()):
        out[:, k] = (x.to(work) * weight[row].to(work)).sum(-1)
    return out


def combine(x: Tensor, weight: Tensor, index: Tensor) -> Tensor:
    """out[n, d] = sum_k x[n, k] weight[index[k], d], accumulated in float32 at least."""
    work = torch.promote_types(x.dtype, torch.float32)
    out = torch.zeros(len(x), weight.shape[1], dtype=work, device=x.device)
    for k, row in enumerate(index.tolist()):
        out += x[:, k, None].to(work) * weight[row].to(work)
    return out.to(x.dtype)
