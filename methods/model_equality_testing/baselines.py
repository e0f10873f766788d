"""What the paper compares its kernels with: tests that count whole completions (app. B.2).

Legend: S draws, R splits of a draw into two samples, n rows of a draw.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

CountKind = Literal["l1", "l2", "chi_squared"]


def count_statistics(
    ids: Int[Tensor, "S n"], labels: Float[Tensor, "S R n"], kind: CountKind
) -> Float[Tensor, "S R"]:
    """Distance of two histograms over distinct (prompt, completion) rows, for every split.

    With c1, c2 the counts of a row in either sample and N1, N2 their sizes:
    `l1` sum |c1/N1 - c2/N2|; `l2` its squares; `chi_squared` the centred statistic for unequal
    sizes, sum ((N2 c1 - N1 c2)^2 - N2^2 c1 - N1^2 c2) / (c1 + c2).

    Args:
        ids: a number for each distinct row, in [0, n).
        labels: 1 where a row belongs to the first sample, 0 for the second.
        kind: which distance.
    """
    draws, splits, rows = labels.shape
    places = (ids + rows * torch.arange(draws, device=ids.device)[:, None]).flatten()
    first = labels.double().permute(0, 2, 1).reshape(draws * rows, splits)
    counts = torch.zeros_like(first).index_add_(0, places, first).view(draws, rows, splits)
    both = torch.bincount(places, minlength=draws * rows).double().view(draws, rows, 1)
    second = both - counts
    n1 = labels.sum(-1, dtype=torch.float64)[:, None]
    n2 = rows - n1
    if kind == "chi_squared":
        square = (n2 * counts - n1 * second) ** 2 - n2**2 * counts - n1**2 * second
        return (square / both.clamp(min=1)).sum(1)
    difference = counts / n1 - second / n2
    return (difference.abs() if kind == "l1" else difference**2).sum(1)
