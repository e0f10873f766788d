"""An arm of the trained parts: which router each MoE layer gets."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from ritornello.common.moe import MoELayer, RoutingState
from ritornello.common.moe.losses import balance_loss
from ritornello.methods.ac_router.router import RouterFactory


@dataclass
class Routers:
    """One router for the first MoE layers, another one for those after them.

    Attributes:
        gate: makes a router from (d_model, num_experts).
        adaptive_gate: makes those of the layers that may use the previous layer's assignment;
            None uses `gate` everywhere.
    """

    gate: RouterFactory
    adaptive_gate: RouterFactory | None = None

    def pattern(self, pattern: str) -> str:
        """The arm's architecture: without an adaptive gate every `c` is a `g`."""
        return pattern if self.adaptive_gate else pattern.replace("c", "g")


def total_balance_loss(model: nn.Module, states: Sequence[RoutingState]) -> Float[Tensor, ""]:
    """Sum over the model's MoE layers, each at the temperature of its own gate.

    Args:
        model: holds the layers in the order in which they run.
        states: theirs.
    """
    layers = [module for module in model.modules() if isinstance(module, MoELayer)]
    terms = [
        balance_loss(state, temperature=layer.router.balance_temperature)
        for layer, state in zip(layers, states, strict=True)
    ]
    return sum(terms[1:], terms[0])
