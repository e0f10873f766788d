"""The adaptive clustering gate: tokens, scaled by their last cluster's feature weights."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ritornello.common.moe import EmbeddingRouter, RoutingState
from ritornello.methods.ac_router.weights import (
    ClusterSums,
    Degenerate,
    Dispersion,
    Scale,
    check_assignment,
    check_weight_options,
    cluster_sums,
    occurring,
    token_weights,
    weights_from_sums,
)

Statistics = Literal["batch", "running"]
RouterFactory = Callable[[int, int], nn.Module]  # (d_model, num_experts) → router


class AdaptiveWeights(nn.Module):
    """Per-token feature weights from the previous layer's assignment, with its statistics.

    Args:
        d_model: width of the tokens.
        num_experts: number of clusters.
        eps: see `weights.adaptive_weights`, like `clip`, `scale`, `dispersion`, `min_tokens` and
            `degenerate`.
        mix: mixes the weights of all previous experts by their scores instead of taking the first.
        statistics: `batch` (the paper) measures the spread on the tokens at hand, in evaluation
            too, so that every token's routing depends on the rest of the batch, later positions
            included. `running` also keeps exponential averages while training and uses
            only those in evaluation: what generation needs.
        decay: of the exponential averages.
        running_in_training: `running` alone: the averages are used in training too, after the
            batch at hand has entered them.
        sync: adds the statistics over the processes of the default group.
        strict: raises on assignments out of range and on tokens that are not finite; costs one
            host synchronisation per call.
    """

    scale: Scale
    dispersion: Dispersion
    running_count: Tensor
    running_deviation: Tensor

    def __init__(
        self,
        d_model: int,
        num_experts: int,
        *,
        eps: float = 1e-4,
        clip: float | None = 10.0,
        scale: Scale = "feature",
        dispersion: Dispersion = "mad",
        min_tokens: int = 2,
        degenerate: Degenerate = "neutral",
        mix: bool = False,
        statistics: Statistics = "batch",
        decay: float = 0.99,
        running_in_training: bool = False,
        sync: bool = False,
        strict: bool = False,
    ) -> None:
        super().__init__()
        check_weight_options(eps, clip, scale, dispersion, min_tokens, degenerate)
        if statistics not in ("batch", "running"):
            raise ValueError(f"statistics must be 'batch' or 'running', got {statistics!r}")
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {decay}")
        if running_in_training and statistics != "running":
            raise ValueError("running_in_training needs statistics='running', got 'batch'")
        self.num_experts = num_experts
        self.eps, self.clip, self.scale = eps, clip, scale
        self.dispersion, self.min_tokens, self.degenerate = dispersion, min_tokens, degenerate
        self.mix, self.sync, self.strict = mix, sync, strict
        self.statistics, self.decay = statistics, decay
        self.running_in_training = running_in_training
        if statistics == "running":
            self.register_buffer("running_count", torch.zeros(num_experts))
            self.register_buffer("running_deviation", torch.zeros(num_experts, d_model))

    @torch.no_grad()
    def forward(
        self,
        tokens: Float[Tensor, "... d"],
        prev: RoutingState,
        token_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "... d"]:
        """Returns the weights of each token, (..., d) fp32, without gradient."""
        top_k = prev.indices.shape[-1]
        if prev.indices.shape[:-1] != tokens.shape[:-1]:
            raise ValueError(
                f"prev.indices must be for the same tokens {tuple(tokens.shape[:-1])}, "
                f"got {tuple(prev.indices.shape[:-1])}"
            )
        flat = tokens.detach().reshape(-1, tokens.shape[-1])
        indices = prev.indices.reshape(-1, top_k)
        mask = None if token_mask is None else token_mask.reshape(-1)
        if self.strict:
            check_assignment(indices, self.num_experts)
            present = flat if mask is None else flat[mask]
            if not present.isfinite().all():
                raise ValueError("tokens must be finite, got NaN or infinity")
        mixing = prev.scores.reshape(-1, top_k) if self.mix else None
        weights = token_weights(self.cluster_weights(flat, indices, mask), indices, mixing)
        return weights.reshape(tokens.shape)

    def cluster_weights(
        self, tokens: Float[Tensor, "n d"], indices: Int[Tensor, "n k"], mask: Tensor | None
    ) -> Float[Tensor, "experts d"]:
        """W from the statistics this module is set to use; updates the averages in training."""
        frozen = self.statistics == "running" and not self.training
        if frozen:
            sums = ClusterSums(self.running_count, self.running_deviation)
        else:
            sums = cluster_sums(
                tokens,
                indices[:, 0],
                self.num_experts,
                dispersion=self.dispersion,
                token_mask=mask,
                sync=self.sync,
            )
        if self.statistics == "running" and self.training:
            self._update(sums)
            if self.running_in_training:
                sums = ClusterSums(self.running_count, self.running_deviation)
        if frozen or self.degenerate == "neutral":
            # An average's count shrinks with (1 - decay): what matters is that it was ever seen.
            seen = sums.count > 0
            valid = seen if frozen or self.running_in_training else sums.count >= self.min_tokens
        else:
            valid = occurring(indices, self.num_experts, mask)
        return weights_from_sums(sums, valid, eps=self.eps, clip=self.clip, scale=self.scale)

    def _update(self, sums: ClusterSums) -> None:
        # A batch in which a cluster is degenerate says nothing about that cluster's spread.
        known = sums.count >= self.min_tokens
        for average, new in (
            (self.running_count, sums.count),
            (self.running_deviation, sums.deviation),
        ):
            step = (1 - self.decay) * (new - average)
            average.add_(step * known.view(-1, *[1] * (new.dim() - 1)))


class ACRouter(nn.Module):
    """Adaptive Clustering router: softmax(TopK((w ⊙ h)ᵀ e_k / ‖e_k‖)), w = W of h's last cluster.

    Args:
        d_model: width of the tokens.
        num_experts: number of experts.
        top_k: experts per token.
        gate: the ordinary gate that sees the scaled tokens; unit-norm embeddings when None, as in
            the paper's language models. Its own `top_k` counts when it is given.
        strict: a missing previous state raises instead of routing with unit weights; also checks
            tokens and assignments (see `AdaptiveWeights`).
        **weight_options: keyword arguments of `AdaptiveWeights`.
    """

    def __init__(
        self,
        d_model: int,
        num_experts: int,
        top_k: int = 2,
        *,
        gate: nn.Module | None = None,
        strict: bool = False,
        **weight_options: Any,
    ) -> None:
        super().__init__()
        self.gate = EmbeddingRouter(d_model, num_experts, top_k) if gate is None else gate
        self.num_experts = num_experts
        self.strict = strict
        self.adaptive = AdaptiveWeights(d_model, num_experts, strict=strict, **weight_options)
        self._warned = False

    @property
    def balance_temperature(self) -> float:
        """Temperature of the gate's logits in a balance loss."""
        return cast(float, self.gate.balance_temperature)

    def forward(
        self,
        tokens: Float[Tensor, "... d"],
        prev: RoutingState | None = None,
        token_mask: Bool[Tensor, "..."] | None = None,
    ) -> RoutingState:
        """Routes tokens given the previous MoE layer's state for the same tokens.

        Args:
            tokens: (..., d).
            prev: without it there are no clusters yet and all weights are 1.
            token_mask: (...) bool, False for padding, which enters no statistics.

        Raises:
            ValueError: when `strict` and `prev` is None; when `prev` is for other tokens.
        """
        if prev is None:
            self._without_previous()
            return self.gate(tokens)
        weights = self.adaptive(tokens, prev, token_mask)
        if isinstance(self.gate, EmbeddingRouter):
            return self.gate(tokens, weights=weights)
        return self.gate(tokens * weights.to(tokens.dtype))._replace(weights=weights)

    def _without_previous(self) -> None:
        if self.strict:
            raise ValueError("prev must be the previous MoE layer's RoutingState, got None")
        if not self._warned:
            self._warned = True
            warnings.warn(
                "ACRouter got no previous routing state: it routes with unit weights. "
                "Make the first MoE layer an ordinary router and pass its state on.",
                stacklevel=3,
            )
