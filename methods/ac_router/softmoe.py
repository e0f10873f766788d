"""Soft mixture of experts with adaptive clustering weights (paper's SoftMoE recipe).

Shapes: b images, m tokens, d width, E experts, p slots per expert.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ritornello.common.moe import Experts, RoutingState
from ritornello.common.moe.experts import Activation
from ritornello.methods.ac_router.router import AdaptiveWeights


class ACSoftMoE(nn.Module):
    """SoftMoE layer; given the previous layer's state it scales its input by adaptive weights.

    Every slot takes a softmax-weighted mean of all tokens, every token a softmax-weighted mean
    of all slots' outputs. The k best slots of a token, as experts, are the clusters handed on.

    Args:
        dim: width of the tokens.
        experts: number of expert networks.
        slots: slots per expert.
        hidden: width of the experts' hidden layer; 4 · dim when None.
        top_k: slots per token handed on as its (mixed) clusters; 8, or all if fewer, when None.
        activation: of the experts.
        dropout: rate inside the experts.
        adaptive: scales the input when a previous state is given. Set it to False for the plain
            SoftMoE layer.
        **weight_options: keyword arguments of `AdaptiveWeights`; the recipe's own are ε 0.35,
            clip 5, scale `global_postclip`, mixing on.
    """

    def __init__(
        self,
        dim: int,
        experts: int,
        slots: int = 1,
        *,
        hidden: int | None = None,
        top_k: int | None = None,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        adaptive: bool = True,
        **weight_options: Any,
    ) -> None:
        super().__init__()
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        width = experts * slots
        self.num_experts, self.slots = experts, slots
        self.top_k = min(8, width) if top_k is None else top_k
        if not 1 <= self.top_k <= width:
            raise ValueError(f"top_k must be in [1, experts * slots={width}], got {top_k}")
        self.phi = nn.Parameter(torch.randn(dim, width) / dim**0.5)
        self.scale = nn.Parameter(torch.ones(()))
        self.experts = Experts(
            experts, dim, hidden or 4 * dim, activation=activation, dropout=dropout
        )
        recipe = {"eps": 0.35, "clip": 5.0, "scale": "global_postclip", "mix": True}
        self.adaptive: AdaptiveWeights | None = None
        if adaptive:
            self.adaptive = AdaptiveWeights(dim, experts, **(recipe | weight_options))

    def forward(
        self,
        tokens: Float[Tensor, "b m d"],
        prev: RoutingState | None = None,
        token_mask: Tensor | None = None,
    ) -> tuple[Float[Tensor, "b m d"], RoutingState]:
        """Returns the output and the state for the next layer.

        The state's scores are the softmax of the k best slot logits: what mixing uses.

        Args:
            tokens: (b, m, d).
            prev: the previous SoftMoE layer's state for the same tokens.
            token_mask: (b, m) bool, False for padding, which no slot sees.
        """
        if tokens.dim() != 3 or tokens.shape[-1] != len(self.phi):
            raise ValueError(f"tokens must be (b, m, {len(self.phi)}), got {tuple(tokens.shape)}")
        x = functional.normalize(tokens, dim=-1)
        weights = None
        if self.adaptive is not None and prev is not None:
            weights = self.adaptive(x, prev, token_mask)
            x = x * weights.to(x.dtype)
        logits = x @ (self.scale * functional.normalize(self.phi, dim=0))
        best, slots = logits.topk(self.top_k, dim=-1)
        state = RoutingState(slots // self.slots, best.softmax(dim=-1), logits, weights)
        dispatch = logits
        if token_mask is not None:
            dispatch = logits.masked_fill(~token_mask.unsqueeze(-1), -torch.inf)
        slot_inputs = dispatch.softmax(dim=1).transpose(1, 2) @ x
        outputs = logits.softmax(dim=-1) @ self._apply_experts(slot_inputs)
        return outputs, state

    def _apply_experts(self, slots: Float[Tensor, "b slots d"]) -> Float[Tensor, "b slots d"]:
        """All experts at once: every expert has b · p rows, so one batched matmul per layer."""
        batch, _, dim = slots.shape
        rows = slots.view(batch, self.num_experts, self.slots, dim).transpose(0, 1)
        rows = rows.reshape(self.num_experts, batch * self.slots, dim)
        experts = self.experts
        assert experts.bias_in is not None
        assert experts.bias_out is not None
        hidden = torch.baddbmm(experts.bias_in.unsqueeze(1), rows, experts.weight_in)
        out = torch.baddbmm(
            experts.bias_out.unsqueeze(1), experts.activate(hidden), experts.weight_out
        )
        out = out.view(self.num_experts, batch, self.slots, dim).transpose(0, 1)
        return out.reshape(batch, self.num_experts * self.slots, dim)
