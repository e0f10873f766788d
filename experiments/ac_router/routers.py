"""An arm of the trained parts: which router each MoE layer gets."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

RouterFactory = Callable[[int, int], nn.Module]


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
