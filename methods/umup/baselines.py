"""What u-muP is compared with: the standard parametrisation and muP, for Adam (table 2)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ritornello.methods.umup.modules import Projection
from ritornello.methods.umup.parametrization import DecoderConfig, Parametrization
from ritornello.methods.umup.scale import check_positive


class PlainWeight(nn.Module):
    """A weight from N(0, std^2), a multiplier of what it gives, a factor of its learning rate.

    Args:
        rows: outputs of a projection, vocabulary of an embedding.
        columns: inputs of a projection, width of an embedding.
        std: standard deviation at initialisation.
        multiplier: of the output.
        lr_scale: learning rate over the global one.
        generator: source of the initial weight.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        *,
        std: float,
        multiplier: float = 1.0,
        lr_scale: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.multiplier, self.lr_scale = multiplier, lr_scale
        self.weight = nn.Parameter(torch.randn(rows, columns, generator=generator) * std)

    def scaled(self, out: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """multiplier * out."""
        return out if self.multiplier == 1 else out * self.multiplier


class PlainLinear(PlainWeight, Projection):
    """multiplier * x W^T; gradients are the ordinary ones."""

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.scaled(F.linear(x, weight))

    def multipliers(self, rows: int) -> tuple[float, float, float]:
        return self.multiplier, self.multiplier, self.multiplier


class PlainEmbedding(PlainWeight):
    """multiplier * table[ids]."""

    def forward(self, ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        return self.scaled(F.embedding(ids, self.weight))


class _Plain(Parametrization):
    """The operators that standard parametrisation and muP share: torch's own."""

    def layers(self, layers: Iterable[nn.Module]) -> nn.ModuleList:
        return nn.ModuleList(layers)

    def norm(self, x: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=eps)

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * F.silu(gate)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, -2), target.flatten())

    def param_groups(
        self, model: nn.Module, lr: float, weight_decay: float = 0.0
    ) -> list[dict[str, Any]]:
        by_scale: dict[float, list[Tensor]] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                scale: Any = module.lr_scale
                by_scale.setdefault(scale, []).append(parameter)
        return [
            {"params": members, "lr": lr * scale, "weight_decay": decay}
            for scale, members in by_scale.items()
            for decay in [weight_decay / (lr * scale) if lr > 0 else 0.0]
        ]


@dataclass(frozen=True)
class SP(_Plain):
    """Standard parametrisation: fan_in^-1/2 initialisation, one learning rate, 1/d_head^1/2.

    Args:
        embedding_std: standard deviation of the embedding at initialisation.
    """

    embedding_std: float = 0.02

    def __post_init__(self) -> None:
        check_positive("embedding_std", self.embedding_std)

    def linear(
        self,
        in_features: int,
        out_features: int,
        config: DecoderConfig,
        *,
        mirrored: bool = False,
        generator: torch.Generator | None = None,
    ) -> PlainLinear:
        return PlainLinear(out_features, in_features, std=in_features**-0.5, generator=generator)

    def readout(
        self, in_features: int, out_features: int, *, generator: torch.Generator | None = None
    ) -> PlainLinear:
        return PlainLinear(out_features, in_features, std=in_features**-0.5, generator=generator)

    def embedding(
        self, vocabulary: int, dim: int, *, generator: torch.Generator | None = None
    ) -> PlainEmbedding:
        return PlainEmbedding(vocabulary, dim, std=self.embedding_std, generator=generator)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale_tokens: int | None = None,
        scale_as_causal: bool | None = None,
        **options: Any,
    ) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, **options)

    def residual(self, branch: Callable, x: Tensor, index: int, branches: int) -> Tensor:
        return x + branch(x)


@dataclass(frozen=True)
class MuP(_Plain):
    """muP for Adam, relative to a base width and, if given, a base depth (Yang et al.).

    Args:
        base_width: width at which muP equals a standard model.
        base_depth: number of layers at which it does; None leaves depth alone.
        base_head_dim: head size at which attention is divided by its square root.
        init_std: sigma_init, multiplies the fan_in^-1/2 of hidden weights.
        embedding_std: standard deviation of the embedding at initialisation.
        embedding_multiplier: alpha_emb.
        attention_multiplier: alpha_attn.
        output_multiplier: alpha_out.
        embedding_lr: eta_emb, learning rate of the embedding over the global one.
    """

    base_width: int = 32
    base_depth: int | None = None
    base_head_dim: int = 16
    init_std: float = 1.0
    embedding_std: float = 0.1
    embedding_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    output_multiplier: float = 1.0
    embedding_lr: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                check_positive(field.name, value)

    def linear(
        self,
        in_features: int,
        out_features: int,
        config: DecoderConfig,
        *,
        mirrored: bool = False,
        generator: torch.Generator | None = None,
    ) -> PlainLinear:
        return PlainLinear(
            out_features,
            in_features,
            std=self.init_std * in_features**-0.5,
            lr_scale=self.base_width / config.width * self._depth_scale(config.layers),
            generator=generator,
        )

    def readout(
        self, in_features: int, out_features: int, *, generator: torch.Generator | None = None
    ) -> PlainLinear:
        return PlainLinear(
            out_features,
            in_features,
            std=self.base_width**-0.5,
            multiplier=self.output_multiplier * self.base_width / in_features,
            generator=generator,
        )

    def embedding(
        self, vocabulary: int, dim: int, *, generator: torch.Generator | None = None
    ) -> PlainEmbedding:
        return PlainEmbedding(
            vocabulary,
            dim,
            std=self.embedding_std,
            multiplier=self.embedding_multiplier,
            lr_scale=self.embedding_lr,
            generator=generator,
        )

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale_tokens: int | None = None,
        scale_as_causal: bool | None = None,
        **options: Any,
    ) -> Tensor:
        scale = self.attention_multiplier * self.base_head_dim**0.5 / query.shape[-1]
        return F.scaled_dot_product_attention(query, key, value, scale=scale, **options)

    def residual(self, branch: Callable, x: Tensor, index: int, branches: int) -> Tensor:
        scale = self._depth_scale(branches // 2)
        return x + branch(x) if scale == 1 else torch.add(x, branch(x), alpha=scale)

    def _depth_scale(self, layers: int) -> float:
        """(base depth / depth)^1/2, of branches and of their Adam learning rates (depth-muP)."""
        return 1.0 if self.base_depth is None else (self.base_depth / layers) ** 0.5
