"""What a router does: load, its entropy, agreement with labels, stability between layers."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ritornello.common.moe.losses import expert_counts


def load(indices: Int[Tensor, "... k"], num_experts: int) -> Float[Tensor, "experts"]:
    """Fraction of all slots that each expert gets; sums to 1."""
    return expert_counts(indices, num_experts) / max(indices.numel(), 1)


def load_entropy(indices: Int[Tensor, "... k"], num_experts: int) -> Float[Tensor, ""]:
    """Entropy of the load divided by log E: 1 when even, 0 when one expert gets everything."""
    if num_experts < 2:
        raise ValueError(f"num_experts must be at least 2 for an entropy, got {num_experts}")
    share = load(indices, num_experts)
    return torch.special.entr(share).sum() / torch.log(torch.tensor(float(num_experts)))


def contingency(
    rows: Int[Tensor, "n"], columns: Int[Tensor, "n"], shape: tuple[int, int]
) -> Float[Tensor, "rows columns"]:
    """How often each pair of labels occurs together."""
    pairs = torch.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1])
    return pairs.view(shape).double()


def normalized_mutual_information(first: Int[Tensor, "n"], second: Int[Tensor, "n"]) -> float:
    """NMI with the arithmetic mean of the entropies (scikit-learn's default), in [0, 1]."""
    table = contingency(first, second, (int(first.max()) + 1, int(second.max()) + 1))
    joint = table / table.sum()
    entropies = torch.stack([torch.special.entr(joint.sum(dim)).sum() for dim in (0, 1)])
    mutual = entropies.sum() - torch.special.entr(joint).sum()
    mean = entropies.mean()
    return float(mutual / mean) if mean > 0 else 1.0


def stability(previous: Int[Tensor, "n"], current: Int[Tensor, "n"]) -> float:
    """Fraction of token pairs whose co-assignment flips between two layers (0 is stable).

    Counted from the contingency table in O(n + E²), over all ordered pairs with themselves.
    """
    shape = (int(previous.max()) + 1, int(current.max()) + 1)
    table = contingency(previous, current, shape)
    together_before = table.sum(1).square().sum()
    together_now = table.sum(0).square().sum()
    together_both = table.square().sum()
    flips = together_before + together_now - 2 * together_both
    return float(flips / table.sum().square())
