"""Mixtral's experts, which transformers stacks in one tensor, as linear layers of their own."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Expert(nn.Module):
    """One gated MLP.

    Args:
        gate_up: weight (2 hidden, width) of both input projections, the gate's rows first.
        down: weight (width, hidden).
        activation: of the gate.
    """

    def __init__(self, gate_up: Tensor, down: Tensor, activation: nn.Module) -> None:
        super().__init__()
        gate, up = gate_up.detach().chunk(2)
        self.gate_proj, self.up_proj, self.down_proj = map(_linear, (gate, up, down.detach()))
        self.act_fn = activation

    def forward(self, x: Float[Tensor, "tokens width"]) -> Float[Tensor, "tokens width"]:
        """down(act(gate x) * up x)."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.ModuleList):
    """The experts of one layer; each sees the tokens that were sent to it, as (tokens, width)."""

    def forward(
        self,
        hidden_states: Float[Tensor, "tokens width"],
        top_k_index: Int[Tensor, "tokens k"],
        top_k_weights: Float[Tensor, "tokens k"],
    ) -> Float[Tensor, "tokens width"]:
        """The weighted sum of the chosen experts' outputs."""
        out = torch.zeros_like(hidden_states)
        for number, expert in enumerate(self):
            token, place = torch.where(top_k_index == number)
            if len(token):
                y = expert(hidden_states[token]) * top_k_weights[token, place, None]
                out.index_add_(0, token, y.to(out.dtype))
        return out


def separate_experts(model: "PreTrainedModel") -> None:
    """Gives every expert of a Mixtral linear layers of its own; other models stay as they are."""
    if model.config.model_type != "mixtral":
        return
    decoder: Any = model.model
    for layer in decoder.layers:
        stacked = layer.mlp.experts
        if not isinstance(stacked, Experts):
            pairs = zip(stacked.gate_up_proj, stacked.down_proj, strict=True)
            layer.mlp.experts = Experts(Expert(*pair, stacked.act_fn) for pair in pairs)


def expert_names(num_experts: int) -> tuple[tuple[tuple[str, ...], str], ...]:
    """(inputs, output) of every expert, named from the decoder layer."""
    prefixes = (f"mlp.experts.{number}" for number in range(num_experts))
    return tuple(((f"{p}.up_proj", f"{p}.gate_proj"), f"{p}.down_proj") for p in prefixes)


def _linear(weight: Float[Tensor, "out channels"]) -> nn.Linear:
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight.clone(), requires_grad=False)
    return linear
