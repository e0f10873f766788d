"""Pre-norm attention blocks of the fusion transformer, with QuickGELU as in CLIP."""

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


class QuickGELU(nn.Module):
    """x · σ(1.702 x)."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Element by element."""
        return x * torch.sigmoid(1.702 * x)


def _attention_weights(
    scores: Float[Tensor, "*batch rows keys"], hidden: Bool[Tensor, "*mask #rows keys"] | None
) -> Float[Tensor, "*batch rows keys"]:
    """Softmax over the keys, exactly zero for those that are hidden."""
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    keys = scores.shape[-1]
    if keys >= 16:
        return scores.softmax(dim=-1)
    # torch takes several times as long over rows shorter than a vector register
    return F.pad(scores, (0, 16 - keys), value=-math.inf).softmax(dim=-1)[..., :keys]


class MultiHeadAttention(nn.Module):
    """Attention with the parameters of `nn.MultiheadAttention`, keys and values apart from queries.

    They are apart so that one set of keys and values serves the queries of every subset of
    modalities.

    Args:
        width: channels.
        heads: heads; divides `width`.
        add_bias_kv: a learned token is added to keys and to values.
        dropout: rate on the attention weights.
    """

    def __init__(
        self, width: int, heads: int, *, add_bias_kv: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.zeros_(self.out_proj.bias)
        self.bias_k = self.bias_v = None
        if add_bias_kv:
            self.bias_k = nn.Parameter(nn.init.xavier_normal_(torch.empty(1, 1, width)))
            self.bias_v = nn.Parameter(nn.init.xavier_normal_(torch.empty(1, 1, width)))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

    def queries(self, x: Float[Tensor, "*batch tokens width"]) -> Tensor:
        """Queries by head, (*batch, heads, tokens, width / heads)."""
        width = x.shape[-1]
        return self._split(F.linear(x, self.in_proj_weight[:width], self.in_proj_bias[:width]))

    def keys_values(self, x: Float[Tensor, "*batch tokens width"]) -> tuple[Tensor, Tensor]:
        """Keys and values by head; with `add_bias_kv` one token more than `x` has."""
        width = x.shape[-1]
        k, v = F.linear(x, self.in_proj_weight[width:], self.in_proj_bias[width:]).chunk(2, dim=-1)
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.to(k.dtype).expand(*k.shape[:-2], 1, -1)], dim=-2)
            v = torch.cat([v, self.bias_v.to(v.dtype).expand(*v.shape[:-2], 1, -1)], dim=-2)
        return self._split(k), self._split(v)

    def forward(
        self,
        q: Float[Tensor, "*batch heads queries head_width"],
        k: Float[Tensor, "*batch heads keys head_width"],
        v: Float[Tensor, "*batch heads keys head_width"],
        hidden: Bool[Tensor, "*mask 1 keys"] | None = None,
    ) -> Float[Tensor, "*batch queries width"]:
        """Softmax attention; keys where `hidden` holds get a weight of exactly zero."""
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = F.dropout(_attention_weights(scores, hidden), self.dropout, self.training)
        # einsum does not copy values that subsets share, as @ does
        mixed = torch.einsum("...qk,...kd->...qd", weights, v)
        return self.out_proj(mixed.transpose(-2, -3).flatten(-2))

    def pool(
        self,
        x: Float[Tensor, "*batch 1 width"],
        context: Float[Tensor, "*batch tokens width"],
        hidden: Bool[Tensor, "*mask 1 1 tokens"] | None = None,
    ) -> Float[Tensor, "*batch 1 width"]:
        """`forward` for one query, without a key or a value for any token.

        With a head's q, W_k and W_v, softmax(q·(W_k y_j + b_k)) = softmax((W_kᵀ q)·y_j) over the
        tokens y_j, and Σ_j w_j (W_v y_j + b_v) = W_v Σ_j w_j y_j + b_v.
        """
        w_q, w_k, w_v = self.in_proj_weight.chunk(3)
        b_q, _, b_v = self.in_proj_bias.chunk(3)
        q = F.linear(x.squeeze(-2), w_q, b_q).unflatten(-1, (self.heads, -1))
        asked = torch.einsum("...hd,hdw->...hw", q, w_k.unflatten(0, (self.heads, -1)))
        scores = asked @ context.transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = _attention_weights(scores, None if hidden is None else hidden.squeeze(-2))
        seen = torch.einsum("...hk,...kw->...hw", weights, context)
        mixed = torch.einsum("...hw,hdw->...hd", seen, w_v.unflatten(0, (self.heads, -1)))
        return self.out_proj(mixed.flatten(-2) + b_v).unsqueeze(-2)


class ResidualAttentionBlock(nn.Module):
    """x += attention(LN x); x += MLP(LN x), four times as wide inside.

    Args:
        width, heads, add_bias_kv, dropout: see `MultiHeadAttention`.
        layers: depth of the whole transformer, which scales the initialisation.
        cross: queries come from one sequence and keys from another, with norms of their own.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        layers: int = 1,
        cross: bool = False,
        add_bias_kv: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attn = MultiHeadAttention(width, heads, add_bias_kv=add_bias_kv, dropout=dropout)
        self.cross = cross
        if cross:
            self.ln_1x, self.ln_1y = nn.LayerNorm(width), nn.LayerNorm(width)
        else:
            self.ln_1 = nn.LayerNorm(width)
        widen, narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(OrderedDict(c_fc=widen, gelu=QuickGELU(), c_proj=narrow))
        self.ln_2 = nn.LayerNorm(width)
        towards_residual = width**-0.5 * (2 * layers) ** -0.5
        nn.init.normal_(self.attn.in_proj_weight, std=width**-0.5)
        nn.init.normal_(self.attn.out_proj.weight, std=towards_residual)
        nn.init.normal_(widen.weight, std=(2 * width) ** -0.5)
        nn.init.normal_(narrow.weight, std=towards_residual)

    def forward(
        self,
        x: Float[Tensor, "*batch queries width"],
        hidden: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Float[Tensor, "*batch queries width"]:
        """The block on `x`, which attends to itself or to `context`."""
        of_x, of_context = (self.ln_1x, self.ln_1y) if self.cross else (self.ln_1, self.ln_1)
        queries, attended = of_x(x), of_context(x if context is None else context)
        dropped = self.training and self.attn.dropout > 0
        if x.shape[-2] == 1 and self.attn.bias_k is None and not dropped:
            x = x + self.attn.pool(queries, attended, hidden)
        else:
            keys, values = self.attn.keys_values(attended)
            x = x + self.attn(self.attn.queries(queries), keys, values, hidden)
        return x + self.mlp(self.ln_2(x))
