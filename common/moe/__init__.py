"""Mixture-of-experts layers: routers, grouped experts, balance losses, routing statistics."""

from ritornello.common.moe.experts import Experts
from ritornello.common.moe.layer import MoELayer
from ritornello.common.moe.losses import balance_loss, importance_loss, load_loss, z_loss
from ritornello.common.moe.routing import (
    EmbeddingRouter,
    RoutingState,
    SMoERouter,
    SwitchTop1Router,
    XMoERouter,
)
from ritornello.common.moe.statistics import (
    load,
    load_entropy,
    normalized_mutual_information,
    stability,
)

__all__ = [
    "EmbeddingRouter",
    "Experts",
    "MoELayer",
    "RoutingState",
    "SMoERouter",
    "SwitchTop1Router",
    "XMoERouter",
    "balance_loss",
    "importance_loss",
    "load",
    "load_entropy",
    "load_loss",
    "normalized_mutual_information",
    "stability",
    "z_loss",
]
