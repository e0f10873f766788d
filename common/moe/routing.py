"""Top-k routers. Every router maps tokens (..., d) and the previous layer's state to a state."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

# Rows per block on a CPU: the scaled tokens of a block stay in a core's cache.
_CPU_BLOCK = 512


class RoutingState(NamedTuple):
    """What a router decided for each token, and what the next router may want to know.

    Attributes:
        indices: experts of each token, best first, (..., k) int64.
        scores: weights of those experts, (..., k), in the dtype of the tokens.
        logits: scores of all experts before the selection, (..., experts).
        weights: the per-feature weights the router multiplied the token with, (..., d), or None.
    """

    indices: Int[Tensor, "... k"]
    scores: Float[Tensor, "... k"]
    logits: Float[Tensor, "... experts"]
    weights: Float[Tensor, "... d"] | None = None


def check_router(d_model: int, num_experts: int, top_k: int) -> None:
    """Raises ValueError unless `top_k` of `num_experts` can be chosen for tokens of `d_model`."""
    if d_model < 1:
        raise ValueError(f"d_model must be at least 1, got {d_model}")
    if not 1 <= top_k <= num_experts:
        raise ValueError(f"top_k must be in [1, num_experts={num_experts}], got {top_k}")


def select_experts(
    logits: Float[Tensor, "... experts"], top_k: int
) -> tuple[Int[Tensor, "... k"], Float[Tensor, "... k"]]:
    """Keeps the k best logits; the scores are a softmax over the kept ones alone."""
    kept, indices = logits.topk(top_k, dim=-1)
    return indices, kept.softmax(dim=-1)


class SMoERouter(nn.Module):
    """The plain sparse gate: a linear layer, the k best, softmax over them.

    Args:
        d_model: width of the tokens.
        num_experts: number of experts.
        top_k: experts per token.
        bias: adds a bias to the logits.
    """

    balance_temperature = 1.0

    def __init__(
        self, d_model: int, num_experts: int, top_k: int = 2, *, bias: bool = True
    ) -> None:
        super().__init__()
        check_router(d_model, num_experts, top_k)
        self.num_experts = num_experts
        self.top_k = top_k
        self.projection = nn.Linear(d_model, num_experts, bias=bias)

    def forward(
        self,
        tokens: Float[Tensor, "... d"],
        prev: RoutingState | None = None,
        token_mask: Tensor | None = None,
    ) -> RoutingState:
        """Routes each token by itself; `prev` and `token_mask` have no influence."""
        logits = self.projection(tokens)
        return RoutingState(*self._select(logits), logits)

    def _select(
        self, logits: Float[Tensor, "... experts"]
    ) -> tuple[Int[Tensor, "... k"], Float[Tensor, "... k"]]:
        return select_experts(logits, self.top_k)


class SwitchTop1Router(SMoERouter):
    """The gate of the Switch transformer: one expert, weighted by its softmax over all experts."""

    def __init__(self, d_model: int, num_experts: int, *, bias: bool = False) -> None:
        super().__init__(d_model, num_experts, 1, bias=bias)

    def _select(
        self, logits: Float[Tensor, "... experts"]
    ) -> tuple[Int[Tensor, "... 1"], Float[Tensor, "... 1"]]:
        # The score keeps the gate trainable; softmax in fp32: Switch's "selective precision".
        scores, indices = logits.float().softmax(dim=-1).max(dim=-1, keepdim=True)
        return indices, scores.to(logits.dtype)


class _ScaledProduct(torch.autograd.Function):
    """(tokens ⊙ weights) embeddingsᵀ in fp32, block by block: the scaled tokens are never whole.

    The weights are constants: they get no gradient.
    """

    @staticmethod
    def forward(
        ctx,
        tokens: Float[Tensor, "n d"],
        weights: Float[Tensor, "n d"],
        embeddings: Float[Tensor, "experts d"],
    ) -> Float[Tensor, "n experts"]:
        ctx.save_for_backward(tokens, weights, embeddings)
        logits = embeddings.new_empty(len(tokens), len(embeddings))
        for rows in _row_blocks(tokens):
            scaled = tokens[rows] * weights[rows].to(tokens.dtype)
            torch.mm(scaled.float(), embeddings.t(), out=logits[rows])
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, None, Tensor]:
        tokens, weights, embeddings = ctx.saved_tensors
        token_grad = torch.empty_like(tokens) if ctx.needs_input_grad[0] else None
        embedding_grad = torch.zeros_like(embeddings)
        for rows in _row_blocks(tokens):
            factor = weights[rows].to(tokens.dtype)
            if token_grad is not None:
                torch.mul(grad[rows] @ embeddings, factor, out=token_grad[rows])
            embedding_grad.addmm_(grad[rows].t(), (tokens[rows] * factor).float())
        return token_grad, None, embedding_grad


def _row_blocks(tokens: Tensor) -> Iterator[slice]:
    """Blocks of rows, one alone where there is no cache of ours to mind."""
    whole = tokens.device.type != "cpu" or torch.compiler.is_compiling()
    block = max(len(tokens), 1) if whole else _CPU_BLOCK
    return (slice(begin, begin + block) for begin in range(0, len(tokens), block))


class EmbeddingRouter(nn.Module):
    """Gate with unit-norm expert embeddings and unnormalised tokens.

    logits = token · e_k / ‖e_k‖ in fp32. With `embedding_norm` the stored embeddings are brought
    back to that norm in place at every forward, so that the learning rate keeps its meaning; the
    logits do not depend on the norm, their gradient does (by 1 / norm).

    Args:
        d_model: width of the tokens.
        num_experts: number of experts.
        top_k: experts per token.
        embedding_norm: norm kept by the stored embeddings; None leaves them alone.
    """

    balance_temperature = 0.3

    def __init__(
        self,
        d_model: int,
        num_experts: int,
        top_k: int = 2,
        *,
        embedding_norm: float | None = 1.5,
    ) -> None:
        super().__init__()
        check_router(d_model, num_experts, top_k)
        if embedding_norm is not None and embedding_norm <= 0:
            raise ValueError(f"embedding_norm must be positive or None, got {embedding_norm}")
        self.num_experts = num_experts
        self.top_k = top_k
        self.embedding_norm = embedding_norm
        self.expert_embeddings = nn.Parameter(torch.empty(num_experts, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Orthogonal rows with gain 0.32, as XMoE starts."""
        nn.init.orthogonal_(self.expert_embeddings, gain=0.32)

    def forward(
        self,
        tokens: Float[Tensor, "... d"],
        prev: RoutingState | None = None,
        token_mask: Tensor | None = None,
        weights: Float[Tensor, "... d"] | None = None,
    ) -> RoutingState:
        """Routes each token, times its `weights` if given, by itself.

        `prev` and `token_mask` have no influence; the weights are constants, kept in the state.
        """
        logits = self._finite(self._logits(tokens, weights))
        indices, scores = select_experts(logits, self.top_k)
        return RoutingState(indices, scores, logits, weights)

    def _logits(
        self, tokens: Float[Tensor, "... d"], weights: Float[Tensor, "... d"] | None
    ) -> Float[Tensor, "... experts"]:
        if self.embedding_norm is not None:
            with torch.no_grad():
                norms = self.expert_embeddings.norm(dim=1, keepdim=True)
                self.expert_embeddings.mul_(self.embedding_norm / norms)
        # A copy goes into the graph: the next forward may rescale the parameter before backward.
        embeddings = functional.normalize(self.expert_embeddings.clone().float(), dim=1, eps=1e-4)
        with torch.autocast(tokens.device.type, enabled=False):
            if weights is None:
                logits = tokens.float() @ embeddings.t()  # fp32: near-ties decide the routing
            else:
                flat, factors = (x.reshape(-1, x.shape[-1]) for x in (tokens, weights))
                logits = _ScaledProduct.apply(flat, factors, embeddings)
                logits = logits.view(*tokens.shape[:-1], self.num_experts)
        return logits.to(tokens.dtype)

    @staticmethod
    def _finite(logits: Float[Tensor, "... experts"]) -> Float[Tensor, "... experts"]:
        """Replaces what is not finite by the smallest finite logit, without a host sync."""
        if logits.numel() == 0:
            return logits
        finite = logits.isfinite()
        lowest = logits.detach().masked_fill(~finite, torch.finfo(logits.dtype).max).amin()
        return torch.where(finite, logits, lowest)


class XMoERouter(EmbeddingRouter):
    """XMoE's gate: tokens reduced to a few dimensions, then compared with unit embeddings.

    Args:
        d_model: width of the tokens.
        num_experts: number of experts.
        top_k: experts per token.
        reduced_dim: width of the routing space.
        embedding_norm: see `EmbeddingRouter`.
    """

    def __init__(
        self,
        d_model: int,
        num_experts: int,
        top_k: int = 2,
        *,
        reduced_dim: int = 8,
        embedding_norm: float | None = 1.5,
    ) -> None:
        if reduced_dim < 1:
            raise ValueError(f"reduced_dim must be at least 1, got {reduced_dim}")
        super().__init__(reduced_dim, num_experts, top_k, embedding_norm=embedding_norm)
        self.reduction = nn.Linear(d_model, reduced_dim, bias=False)

    def _logits(
        self, tokens: Float[Tensor, "... d"], weights: Float[Tensor, "... d"] | None
    ) -> Float[Tensor, "... experts"]:
        if weights is not None:
            tokens = tokens * weights.to(tokens.dtype)
        return super()._logits(self.reduction(tokens), None)
