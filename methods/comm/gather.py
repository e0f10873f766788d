"""Embeddings of all processes, with gradients."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def gather_batch(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Joins each tensor's rows over all processes, in the order of ranks; alone, gives them back.

    The backward pass sums the gradients that all ranks have for a row. With a loss that is a mean
    over the global batch on every rank, that sum is `world_size` times the gradient, and DDP's mean
    over ranks makes it exact.

    Args:
        tensors: of one shape each (rows, …); ranks may differ in the number of rows.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not distributed or torch.distributed.get_world_size() == 1:
        return list(tensors)
    from torch.distributed.nn.functional import all_gather

    rows = torch.tensor([len(tensors[0])], device=tensors[0].device)
    sizes = [torch.zeros_like(rows) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(sizes, rows)
    lengths = [int(size) for size in sizes]
    stacked = torch.stack(list(tensors), dim=1)  # one message for all
    padding = [0, 0] * (stacked.ndim - 1) + [0, max(lengths) - len(stacked)]
    pieces = all_gather(F.pad(stacked, padding).contiguous())
    joined = torch.cat([p[:length] for p, length in zip(pieces, lengths, strict=True)])
    return list(joined.unbind(dim=1))
