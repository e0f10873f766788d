"""The feature weights as loops over clusters and features, in float64: the tests' oracle."""

from itertools import combinations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ritornello.methods.ac_router.weights import Dispersion, Scale


def spread(values: Float[Tensor, "m"], dispersion: Dispersion) -> float:
    """s_qk: the spread of one feature over the tokens of one cluster."""
    if len(values) == 0:
        return 0.0
    mean = values.mean()
    if dispersion == "mad":
        return float((values - mean).abs().mean())
    if dispersion == "var":
        return float((values - mean).square().mean())
    pairs = [float((a - b).abs()) for a, b in combinations(values, 2)]
    return sum(pairs) / len(pairs) if pairs else 0.0


def adaptive_weights_loop(
    tokens: Float[Tensor, "n d"],
    assignment: Int[Tensor, "n"],
    num_experts: int,
    *,
    eps: float = 1e-4,
    clip: float | None = 10.0,
    scale: Scale = "feature",
    dispersion: Dispersion = "mad",
    min_tokens: int = 2,
) -> Float[Tensor, "experts d"]:
    """`weights.adaptive_weights` with `degenerate="neutral"`, one number at a time."""
    tokens = tokens.double()
    weights = torch.ones(num_experts, tokens.shape[1], dtype=torch.float64)
    valid = [k for k in range(num_experts) if int((assignment == k).sum()) >= min_tokens]
    for k in valid:
        members = tokens[assignment == k]
        for q in range(tokens.shape[1]):
            weights[k, q] = 1 / (spread(members[:, q], dispersion) + eps)
    if not valid:
        return weights
    preclip = weights[valid].mean()
    if clip is not None:
        weights[valid] = weights[valid].clamp(max=float(clip * preclip))
    kept = weights[valid]
    if scale == "feature":
        weights[valid] = kept / kept.mean(dim=0)
    elif scale == "global_preclip":
        weights[valid] = kept / preclip
    elif scale == "global_postclip":
        weights[valid] = kept / kept.mean()
    return weights
