"""Switch-like and GLaM-like language models: post-norm sublayers named by a pattern of letters.

Shapes: b sequences, m positions of a segment, l positions of the attention span, d width.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ritornello.common.moe import Experts, MoELayer, RoutingState
from ritornello.methods.ac_router.router import RouterFactory

LETTERS = {"s": "attention", "g": "ordinary MoE", "c": "adaptive MoE", "f": "dense feed-forward"}


class LanguageModelOutput(NamedTuple):
    """Result of one segment.

    Attributes:
        logits: next-token scores, (b, m, vocabulary).
        cache: hidden states that the next segment may attend to, one (b, l, d) per attention.
        states: routing of every MoE sublayer, in order; rows are (b, m).
    """

    logits: Float[Tensor, "b m v"]
    cache: list[Float[Tensor, "b l d"]]
    states: list[RoutingState]


def check_pattern(pattern: str) -> None:
    """Raises ValueError for letters that mean nothing and for an adaptive MoE that comes first."""
    unknown = sorted(set(pattern) - set(LETTERS))
    if unknown or not pattern:
        raise ValueError(f"pattern must be letters of {LETTERS}, got {pattern!r}")
    if "c" in pattern and "g" not in pattern[: pattern.index("c")]:
        raise ValueError(f"pattern needs an ordinary MoE 'g' before the first 'c', got {pattern!r}")


class SpanAttention(nn.Module):
    """Each position attends to the `span` positions before it, not to itself.

    score_ij = (q_i · k_j + q_i · r_{j-i}) / √head, r one learned vector per distance, shared by
    the heads. At the start of a text the positions before it are zero vectors, which are attended
    to like any others.

    Args:
        d_model: width.
        num_heads: heads.
        dropout: rate on the attention probabilities.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"d_model={d_model} must be a multiple of num_heads, got {num_heads}")
        self.num_heads = num_heads
        self.dropout = dropout
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key_value = nn.Linear(d_model, 2 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self,
        hidden: Float[Tensor, "b m d"],
        cache: Float[Tensor, "b l d"],
        positions: Float[Tensor, "head l"],
    ) -> Float[Tensor, "b m d"]:
        """Attends from the segment to cache and segment.

        Args:
            hidden: the segment.
            cache: what came before it, exactly `span` positions.
            positions: r, column 0 the farthest position of the span.
        """
        context = torch.cat([cache, hidden], dim=1)
        query = self._split(self.query(hidden))
        key, value = (self._split(x) for x in self.key_value(context).chunk(2, dim=-1))
        bias = _by_distance(query @ positions) / query.shape[-1] ** 0.5
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, dropout_p=self.dropout if self.training else 0.0
        )
        return self.out(attended.transpose(1, 2).flatten(2))

    def _split(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "b heads m head"]:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def _by_distance(scores: Float[Tensor, "b h m l"]) -> Float[Tensor, "b h m k"]:
    """Moves row i by i columns, from distances to the m + l key positions; -inf elsewhere."""
    *lead, rows, span = scores.shape
    # Rows padded to m + l + 1 and read back with a length of m + l: each starts one column later.
    padded = functional.pad(scores, (0, rows + 1), value=-torch.inf)
    flat = padded.reshape(*lead, rows * (span + rows + 1))
    return flat[..., : rows * (span + rows)].reshape(*lead, rows, span + rows)


class FeedForward(nn.Module):
    """Linear, ReLU, dropout, Linear."""

    def __init__(self, d_model: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, hidden)
        self.down = nn.Linear(hidden, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Applies the two layers to each token."""
        return self.down(self.dropout(functional.relu(self.up(x))))


class MoELanguageModel(nn.Module):
    """Post-norm language model, x = LN(x + sublayer(x)) for every letter of the pattern.

    Args:
        vocabulary: number of tokens.
        pattern: one letter per sublayer: s attention, g ordinary MoE, c adaptive MoE, f dense.
            `sgsgsc` is the paper's small Switch-like model with the new router in its last layer.
        gate: makes the router of `g` from (d_model, num_experts).
        adaptive_gate: makes the router of `c`; needed when the pattern has one.
        d_model: width.
        hidden: width inside experts and dense layers.
        num_heads: attention heads.
        num_experts: experts per MoE.
        span: positions each token attends to.
        dropout: on attention, inside the experts, and on the sublayers' MoE and dense outputs.
    """

    def __init__(
        self,
        vocabulary: int,
        pattern: str,
        gate: RouterFactory,
        adaptive_gate: RouterFactory | None = None,
        *,
        d_model: int = 128,
        hidden: int = 128,
        num_heads: int = 8,
        num_experts: int = 16,
        span: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        check_pattern(pattern)
        if "c" in pattern and adaptive_gate is None:
            raise ValueError(f"adaptive_gate must be given for the pattern {pattern!r}, got None")
        self.pattern = pattern
        self.span = span
        self.embedding = nn.Embedding(vocabulary, d_model)
        self.head = nn.Linear(d_model, vocabulary)
        self.positions = nn.Parameter(torch.randn(d_model // num_heads, span))
        self.dropout = nn.Dropout(dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in pattern)
        self.sublayers = nn.ModuleList()
        for letter in pattern:
            if letter == "s":
                self.sublayers.append(SpanAttention(d_model, num_heads, dropout))
            elif letter == "f":
                self.sublayers.append(FeedForward(d_model, hidden, dropout))
            else:
                factory = gate if letter == "g" else adaptive_gate
                assert factory is not None
                router = factory(d_model, num_experts)
                experts = Experts(num_experts, d_model, hidden, dropout=dropout)
                self.sublayers.append(MoELayer(experts, router))

    def empty_cache(self, batch: int) -> list[Float[Tensor, "b l d"]]:
        """Zero hidden states: the beginning of a text."""
        zeros = self.positions.new_zeros(batch, self.span, self.embedding.embedding_dim)
        return [zeros] * self.pattern.count("s")

    def forward(
        self,
        tokens: Int[Tensor, "b m"],
        cache: list[Float[Tensor, "b l d"]] | None = None,
        token_mask: Tensor | None = None,
    ) -> LanguageModelOutput:
        """Predicts the token after each position.

        Args:
            tokens: one segment of each text.
            cache: `cache` of the previous segment's output; None at the beginning of the texts.
            token_mask: (b, m) bool, False for padding, kept out of the routers' statistics.
        """
        cache = self.empty_cache(len(tokens)) if cache is None else cache
        hidden = self.embedding(tokens)
        new_cache: list[Tensor] = []
        states: list[RoutingState] = []
        for letter, layer, norm in zip(self.pattern, self.sublayers, self.norms, strict=True):
            if letter == "s":
                past = cache[len(new_cache)]
                new_cache.append(torch.cat([past, hidden.detach()], dim=1)[:, -self.span :])
                output = layer(hidden, past, self.positions)
            elif letter == "f":
                output = self.dropout(layer(hidden))
            else:
                output, state = layer(hidden, states[-1] if states else None, token_mask)
                states.append(state)
                output = self.dropout(output)
            hidden = norm(hidden + output)
        return LanguageModelOutput(self.head(hidden), new_cache, states)
