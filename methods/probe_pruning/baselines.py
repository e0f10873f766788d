"""FLAP's global ratio and bias compensation; the other baselines differ in their score alone."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def flap_head_cost(
    hidden_size: int, head_dim: int, tokens: int, *, grouped: bool, gated: bool
) -> float:
    """How many MLP channels one head costs.

    Args:
        hidden_size: D.
        head_dim: d.
        tokens: T, the length of a sequence.
        grouped: grouped-query attention, where keys and values stay whole.
        gated: the MLP has a gate (three matrices instead of two).
    """
    projections = (2 if grouped else 4) * tokens * hidden_size * head_dim
    return (projections + 2 * tokens**2 * head_dim) / ((3 if gated else 2) * tokens * hidden_size)


def flap_layer_ratios(
    attention_scores: Sequence[Float[Tensor, " head_channels"]],
    mlp_scores: Sequence[Float[Tensor, " channels"]],
    num_heads: int,
    ratio: float,
    head_cost: float,
) -> list[tuple[float, float]]:
    """FLAP's ranking of heads and channels over all layers, as (head, channel) ratios per layer.

    Scores are standardised within a layer; from the lowest up, units are removed until their cost
    reaches `ratio` of the whole; a unit at the threshold goes too.

    Args:
        attention_scores: FLAP scores of the channels before W_o, one tensor a pruned layer.
        mlp_scores: likewise before W_down.
        num_heads: heads of a layer; their width follows.
        ratio: the effective ratio, in [0, 1).
        head_cost: `flap_head_cost`.

    Raises:
        ValueError: the lists differ in length or are empty, the ratio is out of range, or
            `num_heads` does not divide the channels.
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio must be in [0, 1), got {ratio}")
    if not attention_scores or len(attention_scores) != len(mlp_scores):
        raise ValueError(
            "attention_scores and mlp_scores must have one entry a layer, "
            f"got {len(attention_scores)} and {len(mlp_scores)}"
        )
    if any(len(s) % num_heads for s in attention_scores):
        raise ValueError(f"num_heads={num_heads} must divide the channels before W_o")
    heads = [_standardised(s).view(num_heads, -1).mean(-1) for s in attention_scores]
    channels = [_standardised(s) for s in mlp_scores]
    values = torch.cat([*heads, *channels])
    costs = torch.ones_like(values)
    costs[: num_heads * len(heads)] = head_cost
    order = values.argsort(stable=True)
    spent = costs[order].cumsum(0)
    position = torch.searchsorted(spent, ratio * spent[-1:], right=True).clamp(max=len(spent) - 1)
    threshold = values[order[position]]

    def share(scores: Tensor) -> float:
        return (scores <= threshold).double().mean().item() if ratio else 0.0

    return [(share(h), share(c)) for h, c in zip(heads, channels, strict=True)]


def _standardised(scores: Tensor) -> Tensor:
    scores = scores.double()
    # A layer without differences has no rank of its own: all zeros.
    return (scores - scores.mean()) / scores.std().clamp(min=torch.finfo(torch.float64).tiny)


def compensating_bias(
    weight: Float[Tensor, "dim channels"],
    mean: Float[Tensor, "positions channels"],
    kept: Int[Tensor, " kept"],
) -> Float[Tensor, " dim"]:
    """FLAP's constant: W times the mean state of the channels that were removed."""
    removed = mean.mean(0).index_fill(0, kept, 0)
    return (weight.detach().float() @ removed).to(weight.dtype)
