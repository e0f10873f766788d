"""One Llama-like language model for every parametrisation (sec. 4.1): pre-norm, rotary, SwiGLU.

Shape legend: B batch, T tokens, C width, V vocabulary.
"""

from collections.abc import Callable

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


class Attention(nn.Module):
    """Causal self-attention of the given parametrisation.

    Args:
        config: sizes.
        parametrization: u-muP by default.
        scale_tokens: length that fixes u-muP's output multiplier; each call's own by default.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        config: DecoderConfig,
        parametrization: Parametrization | None = None,
        *,
        scale_tokens: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.config, self.scale_tokens = config, scale_tokens
        self.parametrization = parametrization or UMuP()
        kv_width = config.num_kv_heads * config.head_dim
        linear = self.parametrization.linear
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
            scale_tokens=self.scale_tokens,
            enable_gqa=config.num_kv_heads != config.heads,
        )
        return self.output(merge_heads(attended))


class SwiGLU(nn.Module):
    """down(up(x) * silu(gate(x))) of the given parametrisation."""

    def __init__(
        self,
        config: DecoderConfig,
        parametrization: Parametrization | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.parametrization = parametrization or UMuP()
        linear, options = self.parametrization.linear, {"mirrored": True, "generator": generator}
        self.up = linear(config.width, config.ffn_width, config, **options)
        self.gate = linear(config.width, config.ffn_width, config, **options)
        self.down = linear(config.ffn_width, config.width, config, **options)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return self.down(self.parametrization.gated(self.up(x), self.gate(x)))


class DecoderLayer(nn.Module):
    """Normed attention and normed feed-forward network, each in a residual branch."""

    def __init__(
        self,
        index: int,
        config: DecoderConfig,
        parametrization: Parametrization | None = None,
        *,
        scale_tokens: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.index, self.config = index, config
        self.parametrization = parametrization or UMuP()
        self.attention = Attention(
            config, self.parametrization, scale_tokens=scale_tokens, generator=generator
        )
        self.feed_forward = SwiGLU(config, self.parametrization, generator=generator)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        rotary: tuple[Tensor, Tensor] | None = None,
        mask: Bool[Tensor, "batch 1 tokens keys"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        scheme, eps = self.parametrization, self.config.norm_eps
        first, branches = 2 * self.index, 2 * self.config.layers

        def attend(branch: Tensor) -> Tensor:
            return self.attention(scheme.norm(branch, eps), rotary, mask, cache)

        def feed(branch: Tensor) -> Tensor:
            return self.feed_forward(scheme.norm(branch, eps))

        x = scheme.residual(attend, x, first, branches)
        return scheme.residual(feed, x, first + 1, branches)


class DecoderLM(nn.Module):
    """Decoder language model, the same definition under SP, muP and u-muP.

    Args:
        config: sizes.
        parametrization: u-muP by default.
        scale_tokens: length that fixes u-muP's attention multiplier; each call's own by default.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        config: DecoderConfig,
        parametrization: Parametrization | None = None,
        *,
        scale_tokens: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.parametrization = scheme = parametrization or UMuP()
        self.embedding = scheme.embedding(config.vocab_size, config.width, generator=generator)
        self.layers = scheme.layers(
            DecoderLayer(i, config, scheme, scale_tokens=scale_tokens, generator=generator)
            for i in range(config.layers)
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
        for layer in self.layers:
            x = layer(x, rotary)
        return self.readout(self.parametrization.norm(x, self.config.norm_eps))

    def loss(
        self, ids: Int[Tensor, "batch tokens"], targets: Int[Tensor, "batch tokens"]
    ) -> Float[Tensor, ""]:
        """Mean cross entropy; targets of -100 are left out."""
        return self.parametrization.loss(self(ids), targets)


def positions_to_rotary(
    positions: Int[Tensor, "*tokens"], config: DecoderConfig, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of `positions` in the dtype of `like`."""
    assert config.rope_theta is not None
    return rotary_angles(positions, config.head_dim, theta=config.rope_theta, dtype=like.dtype)
