"""The mixture-of-experts layer: route, sort by expert, compute, put back, weigh."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ritornello.common.moe.experts import Experts, dispatch_order, within_capacity
from ritornello.common.moe.routing import RoutingState


class _WeightedSum(torch.autograd.Function):
    """Rows times their scores, added up by token; the gradient of the rows is scaled in place."""

    @staticmethod
    def forward(
        ctx,
        rows: Float[Tensor, "slots d"],
        scores: Float[Tensor, "slots"],
        token_of_row: Int[Tensor, "slots"],
        tokens: int,
    ) -> Float[Tensor, "tokens d"]:
        ctx.save_for_backward(rows, scores, token_of_row)
        weighted = rows * scores.unsqueeze(-1)
        return rows.new_zeros(tokens, rows.shape[1]).index_add_(0, token_of_row, weighted)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rows, scores, token_of_row = ctx.saved_tensors
        grad = grad.index_select(0, token_of_row)
        score_grad = torch.linalg.vecdot(grad, rows)
        return grad.mul_(scores.unsqueeze(-1)), score_grad, None, None


class MoELayer(nn.Module):
    """Experts behind a router.

    Args:
        experts: the networks.
        router: any module `(tokens, prev, token_mask) -> RoutingState`.
        scale_expert_input: the experts too see the tokens multiplied by the router's feature
            weights, when the router has some; otherwise they see the tokens as they came.
        capacity_factor: an expert takes at most ⌈factor · k · n / experts⌉ slots, first choices
            first; what does not fit contributes zero. None takes everything.
    """

    def __init__(
        self,
        experts: Experts,
        router: nn.Module,
        *,
        scale_expert_input: bool = False,
        capacity_factor: float | None = None,
    ) -> None:
        super().__init__()
        if router.num_experts != experts.num_experts:
            raise ValueError(
                f"router.num_experts must equal experts.num_experts={experts.num_experts}, "
                f"got {router.num_experts}"
            )
        if capacity_factor is not None and capacity_factor <= 0:
            raise ValueError(f"capacity_factor must be positive or None, got {capacity_factor}")
        self.experts = experts
        self.router = router
        self.scale_expert_input = scale_expert_input
        self.capacity_factor = capacity_factor

    def forward(
        self,
        tokens: Float[Tensor, "... d"],
        prev: RoutingState | None = None,
        token_mask: Tensor | None = None,
    ) -> tuple[Float[Tensor, "... d"], RoutingState]:
        """Returns the mixture's output and the routing state for the next layer.

        Args:
            tokens: (..., d).
            prev: the previous MoE layer's state for the same tokens.
            token_mask: (...) bool, False for padding, handed to the router.
        """
        state = self.router(tokens, prev, token_mask)
        inputs = tokens
        if self.scale_expert_input and state.weights is not None:
            inputs = tokens * state.weights.to(tokens.dtype)
        return self.apply_experts(inputs, state), state

    def apply_experts(
        self, tokens: Float[Tensor, "... d"], state: RoutingState
    ) -> Float[Tensor, "... d"]:
        """The weighted sum of the chosen experts' outputs."""
        flat = tokens.reshape(-1, tokens.shape[-1])
        top_k = state.indices.shape[-1]
        dispatch = dispatch_order(state.indices.reshape(-1, top_k), self.experts.num_experts)
        scores = state.scores.reshape(-1, top_k).t().reshape(-1)[dispatch.order]
        if self.capacity_factor is not None:
            scores = scores * within_capacity(dispatch, self.capacity_factor)
        token_of_slot = dispatch.order % max(len(flat), 1)
        outputs = self.experts(flat.index_select(0, token_of_slot), dispatch)
        mixed = _WeightedSum.apply(outputs, scores.to(outputs.dtype), token_of_slot, len(flat))
        return mixed.reshape(tokens.shape)
