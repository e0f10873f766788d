"""Importance of channels and heads from energies and the block's last matrix (section 3).

e: energies of the C channels. W (D, C): the last matrix; column c belongs to channel c.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ritornello.methods.probe_pruning.config import Score

_LARGEST = torch.finfo(torch.float32).max


def column_weights(
    weight: Float[Tensor, "dim channels"], score: Score
) -> Float[Tensor, " channels"]:
    """All that a score needs of W: one number a column, computed once.

    PPsp is ||e_c W[:, c]^2||_2 = e_c ||W[:, c]^2||_2, so no (D, C) product is ever formed.
    """
    magnitude = weight.detach().float().abs()
    if score == "ppsp":
        return magnitude.pow(4).sum(0).sqrt()
    return magnitude.sum(0) if score == "wanda_sp" else magnitude.square().sum(0)


def score_channels(
    energy: Float[Tensor, " channels"], columns: Float[Tensor, " channels"], score: Score
) -> Float[Tensor, " channels"]:
    """Scores from `column_weights`: PPsp and FLAP e_c * column, Wanda-sp sqrt(e_c) * column.

    What overflows is infinite and ranks highest.
    """
    scale = energy.float().sqrt() if score == "wanda_sp" else energy.float()
    return scale * columns


def score_heads(
    energy: Float[Tensor, " channels"],
    columns: Float[Tensor, " channels"],
    num_heads: int,
    score: Score,
) -> Float[Tensor, " heads"]:
    """Scores of heads from `column_weights`: a joint L2 norm for PPsp, else the channels' sum."""
    channels = score_channels(energy, columns, score).view(num_heads, -1)
    if score == "ppsp":
        return torch.linalg.vector_norm(channels, dim=-1)
    return channels.sum(-1)


def channel_scores(
    energy: Float[Tensor, " channels"], weight: Float[Tensor, "dim channels"], score: Score = "ppsp"
) -> Float[Tensor, " channels"]:
    """Importance of every channel, float32; what overflows is the largest float.

    Args:
        energy: e_c: sum over positions of the (fused) mean squares; fluctuations for FLAP.
        weight: the block's last matrix.
        score: `ppsp` ||e_c W[:, c]^2||_2, `wanda_sp` sum_o sqrt(e_c) |W[o, c]|,
            `flap` e_c sum_o W[o, c]^2.

    Raises:
        ValueError: shapes do not fit or the score is unknown.
    """
    _check(energy, weight, score)
    return score_channels(energy, column_weights(weight, score), score).clamp_(max=_LARGEST)


def head_scores(
    energy: Float[Tensor, " channels"],
    weight: Float[Tensor, "dim channels"],
    num_heads: int,
    score: Score = "ppsp",
) -> Float[Tensor, " heads"]:
    """Importance of every head, float32; arguments and errors as in `channel_scores`."""
    _check(energy, weight, score)
    if num_heads < 1 or len(energy) % num_heads:
        raise ValueError(f"num_heads must divide the {len(energy)} channels, got {num_heads}")
    heads = score_heads(energy, column_weights(weight, score), num_heads, score)
    return heads.clamp_(max=_LARGEST)


def _check(energy: Tensor, weight: Tensor, score: str) -> None:
    if score not in ("ppsp", "wanda_sp", "flap"):
        raise ValueError(f"score must be one of ppsp, wanda_sp, flap, got {score!r}")
    if energy.ndim != 1 or weight.ndim != 2 or weight.shape[1] != len(energy):
        raise ValueError(
            "energy must be (channels,) and weight (dim, channels), "
            f"got {tuple(energy.shape)} and {tuple(weight.shape)}"
        )
