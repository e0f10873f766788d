"""Section 3 as slow, obvious code: the oracle of the tests and the peer of the benchmarks.

It forms the (D, C) product of every score and copies weights by advanced indexing for every batch,
as the published loop does.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ritornello.methods.probe_pruning.architecture import LayerParts, Rotary
from ritornello.methods.probe_pruning.config import ProbePruningConfig
from ritornello.methods.probe_pruning.selection import num_channels_to_prune


def channel_scores(
    energy: Float[Tensor, " channels"], weight: Float[Tensor, "dim channels"], score: str
) -> Float[Tensor, " channels"]:
    """Every score from its definition."""
    if score == "ppsp":
        return torch.linalg.vector_norm(energy * weight.square(), dim=0)
    if score == "wanda_sp":
        return (energy.sqrt() * weight.abs()).sum(0)
    return (energy * weight.square()).sum(0)


def head_scores(
    energy: Float[Tensor, " channels"],
    weight: Float[Tensor, "dim channels"],
    num_heads: int,
    score: str,
) -> Float[Tensor, " heads"]:
    """PPsp: the norm over outputs and the head's channels together; others: the channels' sum."""
    if score != "ppsp":
        return channel_scores(energy, weight, score).view(num_heads, -1).sum(-1)
    product = (energy * weight.square()).view(len(weight), num_heads, -1)
    return torch.stack([product[:, head].square().sum().sqrt() for head in range(num_heads)])


def select_probe(
    residual: Float[Tensor, "B S D"], token_ratio: float, sample_ratio: float
) -> tuple[list[int], list[int]]:
    """Tokens first, then samples among the chosen tokens."""
    batch, length, _ = residual.shape
    norms = residual.square().sum(-1).sqrt()
    by_token = norms.square().sum(0).sqrt().tolist()
    count = min(max(math.ceil(length * token_ratio), 2), length)
    tokens = sorted(sorted(range(length), key=lambda s: (-by_token[s], s))[:count])
    if count <= 10:
        tokens[0] = 0
    by_sample = norms[:, tokens].square().sum(1).sqrt().tolist()
    count = math.ceil(batch * sample_ratio)
    return sorted(sorted(range(batch), key=lambda b: (-by_sample[b], b))[:count]), tokens


def attention(query: Tensor, key: Tensor, value: Tensor) -> Float[Tensor, "B S C"]:
    """Causal softmax attention of (batch, heads, tokens, d)."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(-1, dtype=torch.float32)
    return (weights.to(value.dtype) @ value).transpose(1, 2).flatten(2)


def rotate(states: Tensor, rotary: Rotary, tokens: list[int]) -> Tensor:
    """Rotary embedding at the original positions of `tokens`."""
    cos, sin = (table[0, tokens] for table in rotary)
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


def fuse(probe: Tensor, history: Tensor) -> Tensor:
    """Importance-scaled fusion per position and channel."""
    weight = probe / (probe + history + 1e-6)
    return weight * probe + (1 - weight) * history


def pruned_layer(
    x: Float[Tensor, "B S D"],
    parts: LayerParts,
    config: ProbePruningConfig,
    ratio: float,
    histories: tuple[Tensor, Tensor],
    rotary: Rotary,
) -> tuple[Float[Tensor, "B S D"], Int[Tensor, " heads"], Int[Tensor, " channels"]]:
    """One gated decoder layer with grouped or ungrouped heads, no pads, histories updated in place.

    Args:
        x: residual stream.
        parts: the layer.
        config: ratios of the probe, momentum, multiple and score.
        ratio: the effective ratio.
        histories: v before W_o and before W_down.
        rotary: cosines and sines (1, S, d).
    """
    attention_history, mlp_history = histories
    share = config.probe_ratios
    size, group = parts.head_dim, parts.heads // parts.key_value_heads
    everything = list(range(x.shape[1]))

    def heads_of(states: Tensor) -> Tensor:
        return states.unflatten(-1, (-1, size)).transpose(1, 2)

    h = parts.attention_norm(x)
    samples, tokens = select_probe(x, share["tokens"], share["samples"])
    probe = h[samples][:, tokens]
    q = rotate(heads_of(parts.query(probe)), rotary, tokens)
    k = rotate(heads_of(parts.key(probe)), rotary, tokens).repeat_interleave(group, 1)
    v = heads_of(parts.value(probe)).repeat_interleave(group, 1)
    squares = attention(q, k, v).square().mean(0)
    energy = fuse(squares, attention_history[tokens]).sum(0)
    scores = head_scores(energy, parts.output.weight, parts.heads, config.score)
    keep = scores.argsort(descending=True)[: parts.heads - int(ratio * parts.heads)].sort().values
    idx = torch.cat([torch.arange(head * size, (head + 1) * size) for head in keep.tolist()])

    q = rotate(heads_of(h @ parts.query.weight[idx].T), rotary, everything)
    k = rotate(heads_of(parts.key(h)), rotary, everything).repeat_interleave(group, 1)[:, keep]
    v = heads_of(parts.value(h)).repeat_interleave(group, 1)[:, keep]
    u = attention(q, k, v)
    _follow(attention_history, u, idx, config.momentum)
    x = x + u @ parts.output.weight[:, idx].T

    gate, up = parts.front
    h = parts.mlp_norm(x)
    samples, tokens = select_probe(x, share["tokens"], share["samples"])
    probe = h[samples][:, tokens]
    squares = (parts.activation(gate(probe)) * up(probe)).square().mean(0)
    energy = fuse(squares, mlp_history[tokens]).sum(0)
    scores = channel_scores(energy, parts.down.weight, config.score)
    count = len(scores) - num_channels_to_prune(len(scores), ratio, config.multiple)
    channels = scores.argsort(descending=True)[:count].sort().values
    u = parts.activation(h @ gate.weight[channels].T) * (h @ up.weight[channels].T)
    _follow(mlp_history, u, channels, config.momentum)
    return x + u @ parts.down.weight[:, channels].T, keep, channels


def _follow(history: Tensor, u: Tensor, kept: Tensor, momentum: float) -> None:
    fresh = u.square().mean(0)
    history[: u.shape[1], kept] = momentum * history[: u.shape[1], kept] + (1 - momentum) * fresh
