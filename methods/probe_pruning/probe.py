"""Which tokens and samples form the probe: residual importance (section 3)."""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ritornello.common.finite import all_finite
from ritornello.methods.probe_pruning.config import Axis, check_probe
from ritornello.methods.probe_pruning.selection import keep_highest

# Up to this many tokens, the lowest chosen position gives way to position 0 (an attention sink).
_FEW_TOKENS = 10


def select_probe(
    hidden: Float[Tensor, "batch tokens dim"],
    residual: Float[Tensor, "batch tokens dim"],
    ratios: Mapping[Axis, float],
    order: Sequence[Axis] = ("tokens", "samples"),
) -> tuple[Float[Tensor, "samples chosen dim"], Int[Tensor, " samples"], Int[Tensor, " chosen"]]:
    """Takes the part of `hidden` where the residual stream is largest.

    Args:
        hidden: the block's input, after its norm.
        residual: the residual stream before that norm; it alone decides.
        ratios: share of tokens and of samples; at least two tokens and one sample are taken.
        order: the axis ranked first comes first; an axis that is not named stays whole.

    Returns:
        The probe, the positions of its samples and those of its tokens, both ascending.

    Raises:
        ValueError: shapes differ, the batch is empty, the residual is not finite, or a ratio or an
            axis is not accepted.
    """
    check_probe(ratios, tuple(order))
    if hidden.shape != residual.shape or hidden.ndim != 3:
        raise ValueError(
            "hidden and residual must both be (batch, tokens, dim), "
            f"got {tuple(hidden.shape)} and {tuple(residual.shape)}"
        )
    if not hidden.numel():
        raise ValueError(f"hidden must not be empty, got shape {tuple(hidden.shape)}")
    if not all_finite(residual):
        raise ValueError("residual must be finite, got NaN or infinity")
    samples, tokens = probe_positions(residual, ratios, order)
    return hidden[samples[:, None], tokens], samples, tokens


def probe_positions(
    residual: Float[Tensor, "batch tokens dim"],
    ratios: Mapping[Axis, float],
    order: Sequence[Axis],
    present: Bool[Tensor, "batch tokens"] | None = None,
) -> tuple[Int[Tensor, " samples"], Int[Tensor, " chosen"]]:
    """`select_probe` without its checks; pads (`present` false) count as zero residual."""
    wide = torch.promote_types(residual.dtype, torch.float32)
    norms = torch.linalg.vector_norm(residual, dim=-1, dtype=wide)
    if present is not None:
        norms = norms.masked_fill(~present, 0)
    samples, tokens = (torch.arange(n, device=norms.device) for n in norms.shape)
    for axis in order:
        if axis == "tokens":
            count = min(max(math.ceil(len(tokens) * ratios[axis]), 2), len(tokens))
            tokens = keep_highest(torch.linalg.vector_norm(norms, dim=0), count)
            if count <= _FEW_TOKENS:
                tokens = torch.cat([tokens.new_zeros(1), tokens[1:]])
            norms = norms[:, tokens]
        else:
            count = math.ceil(len(samples) * ratios[axis])
            samples = keep_highest(torch.linalg.vector_norm(norms, dim=1), count)
            norms = norms[samples]
    return samples, tokens
