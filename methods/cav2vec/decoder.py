"""The transformer decoder of sequence-to-sequence fine-tuning (sec. 4.1)."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ritornello.methods.cav2vec.transformer import SelfAttention


def sinusoids(positions: Int[Tensor, " n"], dim: int) -> Float[Tensor, "n dim"]:
    """Sines in the first half of the channels, cosines in the second."""
    half = dim // 2
    rates = torch.exp(
        torch.arange(half, device=positions.device) * -(math.log(10_000) / (half - 1))
    )
    angles = positions[:, None].float() * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, dim % 2))


class LayerCache(NamedTuple):
    """Keys and values of one layer: of the tokens so far, and of the encoder."""

    key: Tensor
    value: Tensor
    memory_key: Tensor
    memory_value: Tensor


class DecoderLayer(nn.Module):
    """Pre-norm: self-attention, attention to the encoder, feed-forward."""

    forward_methods = ("start",)  # what else uses the parameters, told to sharded training

    def __init__(self, dim: int, ffn_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = SelfAttention(dim, num_heads, dropout)
        self.self_attn_layer_norm = nn.LayerNorm(dim)
        self.encoder_attn = SelfAttention(dim, num_heads, dropout)
        self.encoder_attn_layer_norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, dim)
        self.final_layer_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def start(self, memory: Float[Tensor, "batch time dim"]) -> LayerCache:
        """The cache before the first token."""
        attention = self.encoder_attn
        key = attention.split_heads(attention.k_proj(memory))
        value = attention.split_heads(attention.v_proj(memory))
        empty = key[:, :, :0]
        return LayerCache(empty, empty, key, value)

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        cache: LayerCache,
        causal: Bool[Tensor, "length total"] | None,
        memory_mask: Bool[Tensor, "batch 1 1 time"] | None,
    ) -> tuple[Tensor, LayerCache]:
        """The layer on new tokens, and the cache that now holds them too.

        Args:
            x: the new tokens.
            cache: what came before.
            causal: True where a new token may look at a token; None: everywhere.
            memory_mask: True where the encoder may be looked at.
        """
        normed = self.self_attn_layer_norm(x)
        attention = self.self_attn
        key = torch.cat([cache.key, attention.split_heads(attention.k_proj(normed))], dim=2)
        value = torch.cat([cache.value, attention.split_heads(attention.v_proj(normed))], dim=2)
        query = attention.split_heads(attention.q_proj(normed))
        x = x + self.dropout(attention.attend(query, key, value, causal))
        query = self.encoder_attn.split_heads(
            self.encoder_attn.q_proj(self.encoder_attn_layer_norm(x))
        )
        looked = self.encoder_attn.attend(query, cache.memory_key, cache.memory_value, memory_mask)
        x = x + self.dropout(looked)
        x = x + self.dropout(self.fc2(self.dropout(F.relu(self.fc1(self.final_layer_norm(x))))))
        return x, LayerCache(key, value, cache.memory_key, cache.memory_value)


class SpeechDecoder(nn.Module):
    """Token logits from tokens and encoder states; input and output embeddings are one matrix.

    Args:
        vocabulary: tokens.
        dim: width.
        ffn_dim: width of the feed-forward part.
        num_layers: layers.
        num_heads: attention heads.
        memory_dim: width of the encoder.
        pad: padding token; positions count from ``pad + 1``, as in fairseq.
    """

    def __init__(
        self,
        vocabulary: int,
        dim: int,
        ffn_dim: int,
        num_layers: int,
        num_heads: int,
        *,
        memory_dim: int,
        dropout: float = 0.1,
        pad: int = 1,
    ) -> None:
        super().__init__()
        if memory_dim != dim:
            raise ValueError(f"decoder width must equal the encoder's, got {dim} and {memory_dim}")
        self.pad = pad
        self.embed_tokens = nn.Embedding(vocabulary, dim, padding_idx=pad)
        nn.init.normal_(self.embed_tokens.weight, std=dim**-0.5)
        self.layers = nn.ModuleList(
            DecoderLayer(dim, ffn_dim, num_heads, dropout) for _ in range(num_layers)
        )
        self.layer_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def start(self, memory: Float[Tensor, "batch time dim"]) -> list[LayerCache]:
        """Caches of all layers before the first token."""
        caches = []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            caches.append(layer.start(memory))
        return caches

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        caches: list[LayerCache],
        memory_mask: Bool[Tensor, "batch 1 1 time"] | None = None,
    ) -> tuple[Float[Tensor, "batch length vocabulary"], list[LayerCache]]:
        """Logits of the token after each of `tokens`, which continue what `caches` hold."""
        before, length = caches[0].key.shape[2], tokens.shape[1]
        places = torch.arange(before, before + length, device=tokens.device)
        embedded = self.embed_tokens(tokens)
        x = self.dropout(embedded + sinusoids(places + self.pad + 1, embedded.shape[-1]))
        causal = None
        if length > 1:
            causal = places[:, None] >= torch.arange(before + length, device=tokens.device)
        grown = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer(x, cache, causal, memory_mask)
            grown.append(cache)
        return F.linear(self.layer_norm(x), self.embed_tokens.weight), grown
