"""Topograph: a loss and a metric that are strict about the topology of segmentations."""

from typing import TYPE_CHECKING, Any

from ritornello.methods.topograph.baselines import (
    BettiMatchingLoss,
    HuTopoLoss,
    SoftDiceCLDiceLoss,
)
from ritornello.methods.topograph.diu import BettiErrors, DIUResult, betti_errors, diu
from ritornello.methods.topograph.graph import ComponentGraph, component_graph
from ritornello.methods.topograph.heuristic import published_count
from ritornello.methods.topograph.loss import DiceTopographLoss, TopographLoss
from ritornello.methods.topograph.perceptual import MosinLoss
from ritornello.methods.topograph.regions import critical_regions

if TYPE_CHECKING:
    from ritornello.methods.topograph.metric import DIU

__all__ = [
    "DIU",
    "BettiErrors",
    "BettiMatchingLoss",
    "ComponentGraph",
    "DIUResult",
    "DiceTopographLoss",
    "HuTopoLoss",
    "MosinLoss",
    "SoftDiceCLDiceLoss",
    "TopographLoss",
    "betti_errors",
    "component_graph",
    "critical_regions",
    "diu",
    "published_count",
]


def __getattr__(name: str) -> Any:
    """DIU is imported when it is asked for: torchmetrics costs more than torch."""
    if name != "DIU":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ritornello.methods.topograph.metric import DIU

    return DIU
