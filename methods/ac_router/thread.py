"""Hands the routing state from one MoE layer to the next where no argument can carry it."""

from torch import Tensor

from ritornello.common.moe import RoutingState


class RoutingThread:
    """What the MoE layers of one model share during one forward pass.

    Attributes:
        states: states of the MoE layers run so far, in order; kept until the next `begin`.
        token_mask: which tokens count, (n,) bool, or None for all.
        active: whether a forward pass is under way.
    """

    def __init__(self) -> None:
        self.states: list[RoutingState] = []
        self.token_mask: Tensor | None = None
        self.active = False

    @property
    def previous(self) -> RoutingState | None:
        """The last MoE layer's state in this forward pass, None before the first."""
        return self.states[-1] if self.states else None

    def begin(self, token_mask: Tensor | None = None) -> None:
        """Starts a pass: assignments of another batch must never be used."""
        self.states = []
        self.token_mask = token_mask
        self.active = True

    def end(self) -> None:
        """Ends a pass; the states stay readable."""
        self.active = False
