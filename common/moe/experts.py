"""Feed-forward experts whose tokens, sorted by expert, go through one grouped matmul per layer."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ritornello.common.moe.grouped import grouped_matmul

Activation = Literal["relu", "gelu", "swiglu"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "swiglu": functional.silu,
}


class Dispatch(NamedTuple):
    """Slots (token, choice) in the order of their experts.

    Attributes:
        order: slot numbers sorted by expert, (k·n,); slot = choice · n + token, so that every
            token's first choice comes before all second choices of the same expert.
        experts: expert of each sorted slot, (k·n,).
        offsets: end of each expert's run, (experts,) int32.
    """

    order: Int[Tensor, "slots"]
    experts: Int[Tensor, "slots"]
    offsets: Int[Tensor, "experts"]


def dispatch_order(indices: Int[Tensor, "n k"], num_experts: int) -> Dispatch:
    """Sorts the slots of all tokens by expert; no host sync."""
    experts, order = indices.t().reshape(-1).sort(stable=True)
    counts = torch.zeros(num_experts, dtype=torch.int32, device=indices.device)
    counts.index_add_(0, experts, torch.ones_like(experts, dtype=torch.int32))
    return Dispatch(order, experts, counts.cumsum(0, dtype=torch.int32))


def within_capacity(dispatch: Dispatch, capacity_factor: float) -> Tensor:
    """Which sorted slots fit when an expert takes ⌈factor · slots / experts⌉ of them, (k·n,)."""
    slots, num_experts = dispatch.order.numel(), dispatch.offsets.numel()
    capacity = math.ceil(capacity_factor * slots / num_experts)
    starts = functional.pad(dispatch.offsets, (1, 0))[:-1]
    rank = torch.arange(slots, device=starts.device) - starts[dispatch.experts]
    return rank < capacity


class Experts(nn.Module):
    """`num_experts` feed-forward networks held in stacked weights.

    relu and gelu: Linear, activation, dropout, Linear. swiglu: (SiLU(x W_gate) * x W_up) W_down.

    Args:
        num_experts: number of networks.
        d_model: width of input and output.
        hidden: width of the hidden layer.
        activation: `relu`, `gelu` or `swiglu`.
        bias: adds biases to both layers.
        dropout: rate on the hidden activations.
    """

    def __init__(
        self,
        num_experts: int,
        d_model: int,
        hidden: int,
        *,
        activation: Activation = "relu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {activation!r}")
        for name, value in (("num_experts", num_experts), ("d_model", d_model), ("hidden", hidden)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.num_experts = num_experts
        self.activation = activation
        inner = 2 * hidden if activation == "swiglu" else hidden
        self.weight_in = nn.Parameter(torch.empty(num_experts, d_model, inner))
        self.weight_out = nn.Parameter(torch.empty(num_experts, hidden, d_model))
        self.bias_in = nn.Parameter(torch.empty(num_experts, inner)) if bias else None
        self.bias_out = nn.Parameter(torch.empty(num_experts, d_model)) if bias else None
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Each expert starts as torch's own `nn.Linear` would."""
        for weight, bias in ((self.weight_in, self.bias_in), (self.weight_out, self.bias_out)):
            bound = 1 / math.sqrt(weight.shape[1])
            nn.init.uniform_(weight, -bound, bound)
            if bias is not None:
                nn.init.uniform_(bias, -bound, bound)

    def forward(
        self, tokens: Float[Tensor, "slots d"], dispatch: Dispatch
    ) -> Float[Tensor, "slots d"]:
        """Applies to each sorted slot its expert.

        Args:
            tokens: one row per slot in the order of `dispatch`.
            dispatch: where each expert's run of rows ends.
        """
        hidden = self._linear(tokens, self.weight_in, self.bias_in, dispatch)
        return self._linear(self.activate(hidden), self.weight_out, self.bias_out, dispatch)

    def activate(self, hidden: Float[Tensor, "... inner"]) -> Float[Tensor, "... hidden"]:
        """The activation and the dropout between the two layers."""
        function = ACTIVATIONS[self.activation]
        if self.activation == "swiglu":
            gate, up = hidden.chunk(2, dim=-1)
            return self.dropout(function(gate) * up)
        return self.dropout(function(hidden))

    @staticmethod
    def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, dispatch: Dispatch) -> Tensor:
        y = grouped_matmul(x, weight, dispatch.offsets)
        return y if bias is None else y + bias.to(y.dtype).index_select(0, dispatch.experts)
