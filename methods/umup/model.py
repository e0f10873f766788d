"""One Llama-like language model for every parametrisation (sec. 4.1): pre-norm, rotary, SwiGLU.

Shape legend: B batch, T tokens, C width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ritornello.common.models.transformer import (
    apply_rotary,
    merge_heads,
    rotary_angles,
    split_heads,
)
from ritornello.methods.umup.parametrization import DecoderConfig, Parametrization, UMuP

Cache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class DecoderPart(nn.Module):
    """What the pieces of the decoder share: sizes, a parametrisation, seeded initial weights.

    Args:
        config: sizes.
        parametrization: u-muP by default.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        config: DecoderConfig,
        parametrization: Parametrization | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.parametrization = UMuP() if parametrization is None else parametrization
        self._build(generator)

    def _build(self, generator: torch.Generator | None) -> None:
        """Makes the weights; part of the construction."""
        raise TypeError(f"{type(self).__name__} must define _build")


class Attention(DecoderPart):
    """Causal self-attention of the given parametrisation."""

    def _build(self, generator: torch.Generator | None) -> None:
        config, linear = self.config, self.parametrization.linear
        kv_width = config.num_kv_heads * config.head_dim
        self.query = linear(config.width, config.width, config, generator=generator)
        self.key = linear(config.width, kv_width, config, generator=generator)
        self.value = linear(config.width, kv_width, config, generator=generator)
        self.output = linear(config.width, config.width, config, generator=generator)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        rotary: tuple[Tensor, Tensor] | None = None,
        mask: Bool[Tensor, "batch 1 tokens keys"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """Attends to this and earlier tokens.

        Args:
            x: input.
            rotary: cosines and sines of the positions; computed here when left out.
            mask: True where a token may look; the causal triangle when left out.
            cache: stores new keys and values and gives all of them.
        """
        config = self.config
        if rotary is None and config.rope_theta is not None:
            rotary = positions_to_rotary(torch.arange(x.shape[-2], device=x.device), config, x)
        query = split_heads(self.query(x), config.heads)
        key = split_heads(self.key(x), config.num_kv_heads)
        value = split_heads(self.value(x), config.num_kv_heads)
        if rotary is not None:
            query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
        if cache is not None:
            key, value = cache(key, value)
        attended = self.parametrization.attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale_as_causal=True,
            scale_tokens=config.attention_tokens,
            enable_gqa=config.num_kv_heads != config.heads,
        )
        return self.output(merge_heads(attended))


class SwiGLU(DecoderPart):
    """down(up(x) * silu(gate(x))) of the given parametrisation."""

    def _build(self, generator: torch.Generator | None) -> None:
        config, linear = self.config, self.parametrization.linear
        options = {"mirrored": True, "generator": generator}
        self.up = linear(config.width, config.ffn_width, config, **options)
        self.gate = linear(config.width, config.ffn_width, config, **options)
        self.down = linear(config.ffn_width, config.width, config, **options)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Applies the network to every token."""
        return self.down(self.parametrization.gated(self.up(x), self.gate(x)))


class DecoderLayer(DecoderPart):
    """Normed attention and normed feed-forward network, each in a residual branch."""

    def _build(self, generator: torch.Generator | None) -> None:
        self.attention = Attention(self.config, self.parametrization, generator=generator)
        self.feed_forward = SwiGLU(self.config, self.parametrization, generator=generator)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        index: int,
        *attention_inputs: Any,
    ) -> Float[Tensor, "batch tokens width"]:
        """Layer number `index` (from 0), which sets the weights of its residual branches.

        Args:
            x: input.
            index: number of this layer in the decoder.
            *attention_inputs: rotary, mask and cache of `Attention.forward`.
        """
        scheme, eps = self.parametrization, self.config.norm_eps
        first, branches = 2 * index, 2 * self.config.layers

        def attend(branch: Tensor) -> Tensor:
            return self.attention(scheme.norm(branch, eps), *attention_inputs)

        def feed(branch: Tensor) -> Tensor:
            return self.feed_forward(scheme.norm(branch, eps))

        x = scheme.residual(attend, x, first, branches)
        return scheme.residual(feed, x, first + 1, branches)


class DecoderLM(DecoderPart):
    """Decoder language model, the same definition under SP, muP and u-muP."""

    def _build(self, generator: torch.Generator | None) -> None:
        config, scheme = self.config, self.parametrization
        self.embedding = scheme.embedding(config.vocab_size, config.width, generator=generator)
        self.layers = scheme.layers(
            DecoderLayer(config, scheme, generator=generator) for _ in range(config.layers)
        )
        self.readout = scheme.readout(config.width, config.vocab_size, generator=generator)

    def forward(self, ids: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens vocabulary"]:
        """Logits of the next token at every position."""
        x = self.embedding(ids)
        rotary = None
        if self.config.rope_theta is not None:
            rotary = positions_to_rotary(
                torch.arange(ids.shape[-1], device=ids.device), self.config, x
            )
        for index, layer in enumerate(self.layers):
            x = layer(x, index, rotary)
        return self.readout(self.parametrization.norm(x, self.config.norm_eps))

    def loss(
        self, ids: Int[Tensor, "batch tokens"], targets: Int[Tensor, "batch tokens"]
    ) -> Float[Tensor, ""]:
        """Mean cross entropy; targets of -100 are left out."""
        return self.parametrization.loss(self(ids), targets)


UmupTransformer = DecoderLM  # u-muP is what it is without another parametrisation


def positions_to_rotary(
    positions: Int[Tensor, "*tokens"], config: DecoderConfig, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of `positions` in the dtype of `like`."""
    assert config.rope_theta is not None
    return rotary_angles(positions, config.head_dim, theta=config.rope_theta, dtype=like.dtype)
