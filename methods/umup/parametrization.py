"""What a parametrisation decides of a model: u-muP here, standard and muP in `baselines`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ritornello.methods.umup import functional as U
from ritornello.methods.umup import modules, optim
from ritornello.methods.umup.scale import check_positive


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a Llama-like decoder.

    Args:
        vocab_size: V.
        width: of the residual stream.
        layers: attention and feed-forward pairs.
        heads: query heads; must divide `width`.
        hidden: width of the feed-forward network, 4 * width by default.
        kv_heads: key/value heads; `heads` by default.
        rope_theta: base of the rotary positions, None for no positions.
        norm_eps: inside the root of the RMS norms.
        attention_tokens: length that fixes u-muP's attention multiplier; each call's own by
            default.

    Raises:
        ValueError: for a size below 1, or heads that do not divide the width.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    hidden: int | None = None
    kv_heads: int | None = None
    rope_theta: float | None = 10_000.0
    norm_eps: float = 1e-5
    attention_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "layers", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads={self.heads}, got {self.width}")
        if self.heads % self.num_kv_heads:
            raise ValueError(
                f"heads must be a multiple of kv_heads={self.num_kv_heads}, got {self.heads}"
            )

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.width // self.heads

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads; `heads` when `kv_heads` is None."""
        return self.kv_heads or self.heads

    @property
    def ffn_width(self) -> int:
        """Hidden width of the feed-forward network; 4 * width when `hidden` is None."""
        return self.hidden or 4 * self.width


class Parametrization(ABC):
    """Initialisation, multipliers and learning rates of one model definition."""

    @abstractmethod
    def linear(
        self,
        in_features: int,
        out_features: int,
        config: DecoderConfig,
        *,
        mirrored: bool = False,
        generator: torch.Generator | None = None,
    ) -> modules.Projection:
        """A hidden projection without bias, in a model of the sizes of `config`.

        `mirrored`: it leads into or out of a feed-forward network whose other end has the
        transposed shape.
        """

    @abstractmethod
    def readout(
        self, in_features: int, out_features: int, *, generator: torch.Generator | None = None
    ) -> modules.Projection:
        """The projection to the logits."""

    @abstractmethod
    def embedding(
        self, vocabulary: int, dim: int, *, generator: torch.Generator | None = None
    ) -> nn.Module:
        """The token embedding."""

    @abstractmethod
    def layers(self, layers: Iterable[nn.Module]) -> nn.ModuleList:
        """The container of the residual stack."""

    @abstractmethod
    def norm(self, x: Float[Tensor, "*batch dim"], eps: float) -> Float[Tensor, "*batch dim"]:
        """RMS norm without gain."""

    @abstractmethod
    def attention(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """Causal attention; the options are those of `functional.scaled_dot_product_attention`."""

    @abstractmethod
    def gated(self, x: Float[Tensor, "*shape"], gate: Float[Tensor, "*shape"]) -> Tensor:
        """x * silu(gate)."""

    @abstractmethod
    def residual(
        self, branch: Callable[[Tensor], Tensor], x: Tensor, index: int, branches: int
    ) -> Tensor:
        """x plus branch `index` of `branches` (even: attention, odd: feed-forward)."""

    @abstractmethod
    def loss(
        self, logits: Float[Tensor, "*rows classes"], target: Int[Tensor, "*rows"]
    ) -> Float[Tensor, ""]:
        """Mean cross entropy; rows with target -100 are left out."""

    @abstractmethod
    def param_groups(
        self, model: nn.Module, lr: float, weight_decay: float = 0.0
    ) -> list[dict[str, Any]]:
        """Groups for AdamW, with independent weight decay."""


@dataclass(frozen=True)
class UMuP(Parametrization):
    """u-muP with its five multipliers, all 1 by default (table 3).

    Args:
        attention_softmax: alpha_attn-softmax, temperature of the attention logits.
        ffn_activation: alpha_ffn-act, temperature of the gate.
        residual_branches: alpha_res, weight of the branches against the embedding.
        residual_attention_ratio: alpha_res-attn-ratio, attention against feed-forward branches.
        loss_softmax: alpha_loss-softmax, temperature of the output distribution.
    """

    attention_softmax: float = 1.0
    ffn_activation: float = 1.0
    residual_branches: float = 1.0
    residual_attention_ratio: float = 1.0
    loss_softmax: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            check_positive(field.name, getattr(self, field.name))

    def linear(
        self,
        in_features: int,
        out_features: int,
        config: DecoderConfig,
        *,
        mirrored: bool = False,
        generator: torch.Generator | None = None,
    ) -> modules.Linear:
        # A mirrored pair has the same product of input-gradient multipliers with and without the
        # constraint, so it can go without, and the gradient inside has unit scale too.
        return modules.Linear(
            in_features,
            out_features,
            constraint=None if mirrored else "to_output_scale",
            mirrored=mirrored,
            generator=generator,
        )

    def readout(
        self, in_features: int, out_features: int, *, generator: torch.Generator | None = None
    ) -> modules.LinearReadout:
        return modules.LinearReadout(in_features, out_features, generator=generator)

    def embedding(
        self, vocabulary: int, dim: int, *, generator: torch.Generator | None = None
    ) -> modules.Embedding:
        return modules.Embedding(vocabulary, dim, generator=generator)

    def layers(self, layers: Iterable[nn.Module]) -> nn.ModuleList:
        return modules.DepthModuleList(layers)

    def norm(self, x: Tensor, eps: float) -> Tensor:
        return U.rms_norm(x, eps=eps)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return U.scaled_dot_product_attention(
            query, key, value, mult=self.attention_softmax, **options
        )

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return U.silu_glu(x, gate, mult=self.ffn_activation)

    def residual(
        self, branch: Callable[[Tensor], Tensor], x: Tensor, index: int, branches: int
    ) -> Tensor:
        return U.residual_apply(branch, x, self.tau(index, branches))

    def tau(self, index: int, branches: int) -> float:
        """Ratio of branch to skip of residual branch `index`."""
        return U.transformer_residual_tau(
            index,
            branches,
            residual_mult=self.residual_branches,
            attention_ratio=self.residual_attention_ratio,
        )

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return U.cross_entropy(logits, target, mult=self.loss_softmax)

    def param_groups(
        self, model: nn.Module, lr: float, weight_decay: float = 0.0
    ) -> list[dict[str, Any]]:
        return optim.param_groups(model, lr, weight_decay)
