"""How much is pruned in a layer, and which heads and channels stay (section 3)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def effective_ratio(ratio: float, num_layers: int, num_skipped: int) -> float:
    """The ratio of the layers that are pruned, so that `ratio` holds over all of them.

    Rounded to two digits with Python's round, as published.

    Raises:
        ValueError: no layer is left to prune, or nothing would be left of those that are.
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio must be in [0, 1), got {ratio}")
    if not 0 <= num_skipped < num_layers:
        raise ValueError(
            f"num_skipped must be in [0, num_layers={num_layers}), got {num_skipped}: "
            "no layer is left to prune"
        )
    effective = round(num_layers / (num_layers - num_skipped) * ratio, 2)
    if effective >= 1:
        raise ValueError(
            f"ratio={ratio} with {num_skipped} of {num_layers} layers skipped asks for "
            f"{effective:.0%} of the others: lower ratio or skip fewer layers"
        )
    return effective


def num_heads_to_prune(num_heads: int, ratio: float) -> int:
    """int(ratio * num_heads)."""
    return int(ratio * num_heads)


def num_channels_to_prune(num: int, ratio: float, multiple: int, *, legacy: bool = False) -> int:
    """int(ratio * num), lowered until the number kept is a multiple of `multiple`.

    Args:
        num: F.
        ratio: the effective ratio.
        multiple: of kept channels.
        legacy: where `num` is too small for that, the published code slices from the end
            by accident and keeps few channels; by default nothing is pruned there.

    Raises:
        ValueError: there is no channel, or `multiple` is not positive.
    """
    if num < 1 or multiple < 1:
        raise ValueError(f"num and multiple must be at least 1, got {num}, {multiple}")
    pruned = int(ratio * num)
    remainder = (num - pruned) % multiple
    if remainder:
        pruned -= multiple - remainder
    return pruned % num if legacy else max(pruned, 0)


def keep_highest(scores: Float[Tensor, " units"], count: int) -> Int[Tensor, " count"]:
    """Positions of the `count` highest scores, ascending; of equal scores the lower position."""
    order = torch.sort(scores, descending=True, stable=True).indices
    return order[:count].sort().values


def head_channels(heads: Int[Tensor, " heads"], head_dim: int) -> Int[Tensor, " channels"]:
    """The channels of the given heads, in the heads' order."""
    offsets = torch.arange(head_dim, device=heads.device)
    return (heads[:, None] * head_dim + offsets).flatten()
