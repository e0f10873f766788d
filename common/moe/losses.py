"""Auxiliary losses that keep the load of experts even and the logits small."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ritornello.common.moe.routing import RoutingState


def balance_loss(
    state: RoutingState, *, temperature: float = 1.0, per_slot: bool = False
) -> Float[Tensor, ""]:
    """E Σ_k f_k P_k: f the fraction of slots of expert k, P its mean softmax probability.

    1 when perfectly balanced, E when every token goes to one expert (Switch, eq. 4).

    Args:
        state: what the router decided.
        temperature: divides the logits (XMoE-like gates use 0.3).
        per_slot: divides the probabilities by the number of slots n·k instead of n, as FastMoE-
            based codes do: the loss is then smaller by the factor k.
    """
    num_experts = state.logits.shape[-1]
    logits = state.logits.reshape(-1, num_experts)
    slots = state.indices.numel()
    fraction = expert_counts(state.indices, num_experts) / slots
    probability = (logits.float() / temperature).softmax(dim=-1).sum(dim=0)
    return num_experts * (fraction * probability).sum() / (slots if per_slot else len(logits))


def z_loss(logits: Float[Tensor, "... experts"]) -> Float[Tensor, ""]:
    """Mean squared log-partition: keeps router logits small (ST-MoE, eq. 5)."""
    return logits.float().logsumexp(dim=-1).square().mean()


def importance_loss(state: RoutingState) -> Float[Tensor, ""]:
    """Squared coefficient of variation of the summed softmax over experts (Shazeer et al.)."""
    probability = state.logits.float().softmax(dim=-1).flatten(0, -2).sum(dim=0)
    return _squared_variation(probability)


def load_loss(state: RoutingState, noise: float = 1.0) -> Float[Tensor, ""]:
    """Squared coefficient of variation of the smooth load (V-MoE, appendix A).

    The load of expert k is Σ_i P(logit_ik + noise/E · N(0,1) ≥ the k-th kept logit of token i).
    """
    logits = state.logits.float().flatten(0, -2)
    threshold = logits.gather(-1, state.indices.flatten(0, -2)).amin(dim=-1, keepdim=True)
    deviation = noise / logits.shape[-1]
    return _squared_variation(torch.special.ndtr((logits - threshold) / deviation).sum(dim=0))


def expert_counts(indices: Int[Tensor, "... k"], num_experts: int) -> Float[Tensor, "experts"]:
    """How many slots each expert got, as floats (no host sync, works under compile)."""
    flat = indices.reshape(-1)
    ones = torch.ones_like(flat, dtype=torch.float32)
    return torch.zeros(num_experts, device=flat.device).index_add_(0, flat, ones)


def _squared_variation(x: Float[Tensor, "experts"]) -> Float[Tensor, ""]:
    return x.var() / (x.mean().square() + 1e-10)
