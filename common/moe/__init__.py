"""Mixture-of-experts layers: routers, grouped experts, balance losses, routing statistics."""

from ritornello.common.moe.experts import Experts
from ritornello.common.moe.layer import MoELayer
from ritornello.common.moe.routing import (
    EmbeddingRouter,
    RoutingState,
    SMoERouter,
    SwitchTop1Router,
    XMoERouter,
)

__all__ = [
    "EmbeddingRouter",
    "Experts",
    "MoELayer",
    "RoutingState",
    "SMoERouter",
    "SwitchTop1Router",
    "XMoERouter",
]
