"""The transformer above the front-ends (wav2vec 2.0's, as AV-HuBERT uses it)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


class LayerOutput(NamedTuple):
    """A layer's output, and its feed-forward output before the residual (the targets' source)."""

    hidden: Tensor
    ffn: Tensor


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence on itself or on a memory."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.q_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def split_heads(self, x: Float[Tensor, "batch time dim"]) -> Float[Tensor, "batch h time d"]:
        """One slice per head."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attention on heads that are split already; `mask` is True where looking is allowed."""
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, mask, dropout)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))

    def forward(
        self, x: Float[Tensor, "batch time dim"], mask: Bool[Tensor, "batch 1 1 time"] | None
    ) -> Float[Tensor, "batch time dim"]:
        """The sequence looks at itself; `mask` is True where looking is allowed."""
        query, key, value = (
            self.split_heads(projection(x))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.attend(query, key, value, mask)


class TransformerLayer(nn.Module):
    """Attention and feed-forward, each with a residual; normalised before or after."""

    def __init__(
        self,
        dim: int,
        ffn_dim: int,
        num_heads: int,
        *,
        dropout: float,
        attention_dropout: float,
        activation_dropout: float,
        layer_norm_first: bool,
    ) -> None:
        super().__init__()
        self.self_attn = SelfAttention(dim, num_heads, attention_dropout)
        self.self_attn_layer_norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, dim)
        self.final_layer_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.activation_dropout = nn.Dropout(activation_dropout)
        self.layer_norm_first = layer_norm_first

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation_dropout(F.gelu(self.fc1(x))))

    def forward(self, x: Float[Tensor, "batch time dim"], mask: Tensor | None) -> LayerOutput:
        """One layer, (batch, time, dim); `mask` is True where looking is allowed."""
        if self.layer_norm_first:
            x = x + self.dropout(self.self_attn(self.self_attn_layer_norm(x), mask))
            ffn = self._feed_forward(self.final_layer_norm(x))
            return LayerOutput(x + self.dropout(ffn), ffn)
        x = self.self_attn_layer_norm(x + self.dropout(self.self_attn(x, mask)))
        ffn = self._feed_forward(x)
        return LayerOutput(self.final_layer_norm(x + self.dropout(ffn)), ffn)


class _NormedWeight(nn.Module):
    """A convolution's weight as a gain for each tap and a direction."""

    def __init__(self, weight: Float[Tensor, "out in taps"]) -> None:
        super().__init__()
        self.original0 = nn.Parameter(weight.norm(dim=(0, 1), keepdim=True))
        self.original1 = nn.Parameter(weight)

    def forward(self, taps: slice) -> Float[Tensor, "out in some"]:
        return torch._weight_norm(self.original1[..., taps], self.original0[..., taps], 2)


class PositionConv(nn.Module):
    """A grouped convolution over time, weight-normed tap by tap, as long as its input.

    The parameters have the names of torch's own parametrisation, so that checkpoints fit; that one
    cannot be sent to another process, which training in several needs.
    """

    def __init__(self, dim: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.kernel, self.groups = kernel, groups
        weight = torch.empty(dim, dim // groups, kernel).normal_(std=(4 / (kernel * dim)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(dim))
        self.parametrizations = nn.ModuleDict({"weight": _NormedWeight(weight)})

    def forward(self, x: Float[Tensor, "batch dim time"]) -> Float[Tensor, "batch dim time"]:
        """An even kernel gives one frame too many, the last, which goes; so do taps on no frame."""
        frames, centre = x.shape[-1], self.kernel // 2
        reach = min(centre, frames - 1)
        weight = self.parametrizations["weight"](slice(centre - reach, centre + reach + 1))
        y = F.conv1d(x, weight, self.bias, padding=reach, groups=self.groups)
        return y[..., :frames]


class EncoderResult(NamedTuple):
    """The last hidden state after the final norm, and every layer's hidden and FFN output."""

    last_hidden_state: Tensor
    hidden_states: list[Tensor]
    ffn_outputs: list[Tensor]


class TransformerEncoder(nn.Module):
    """Convolutional positions and a stack of layers.

    Args:
        dim: width D.
        ffn_dim: width inside the feed-forward part.
        num_layers: layers.
        num_heads: attention heads.
        pos_conv_kernel: frames the positional convolution sees.
        pos_conv_groups: its groups.
        layerdrop: chance that a layer is skipped in training.
        layer_norm_first: normalise before attention and feed-forward, and once at the end.
    """

    def __init__(
        self,
        dim: int,
        ffn_dim: int,
        num_layers: int,
        num_heads: int,
        *,
        pos_conv_kernel: int,
        pos_conv_groups: int,
        dropout: float,
        attention_dropout: float,
        activation_dropout: float,
        layerdrop: float,
        layer_norm_first: bool,
    ) -> None:
        super().__init__()
        positions = PositionConv(dim, pos_conv_kernel, pos_conv_groups)
        self.pos_conv = nn.Sequential(positions, nn.GELU())
        self.layers = nn.ModuleList(
            TransformerLayer(
                dim,
                ffn_dim,
                num_heads,
                dropout=dropout,
                attention_dropout=attention_dropout,
                activation_dropout=activation_dropout,
                layer_norm_first=layer_norm_first,
            )
            for _ in range(num_layers)
        )
        self.layer_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.layerdrop, self.layer_norm_first = layerdrop, layer_norm_first
        for module in self.layers.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def positions(self, x: Float[Tensor, "batch time dim"]) -> Float[Tensor, "batch time dim"]:
        """The positional term."""
        return self.pos_conv(x.transpose(1, 2)).transpose(1, 2)

    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        padding_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> EncoderResult:
        """Args: x: fused features; padding_mask: True at padding."""
        allowed = None
        if padding_mask is not None:
            x = x.masked_fill(padding_mask[..., None], 0)
            allowed = ~padding_mask[:, None, None, :]
        x = x + self.positions(x)
        if not self.layer_norm_first:
            x = self.layer_norm(x)
        x = self.dropout(x)
        hidden_states, ffn_outputs = [], []
        for layer in self.layers:
            if self.training and self.layerdrop > 0 and float(torch.rand(())) < self.layerdrop:
                continue
            x, ffn = layer(x, allowed)
            hidden_states.append(x)
            ffn_outputs.append(ffn)
        last = self.layer_norm(x) if self.layer_norm_first else x
        return EncoderResult(last, hidden_states, ffn_outputs)
