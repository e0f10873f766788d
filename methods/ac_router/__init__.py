"""Adaptive Clustering router for sparse mixtures of experts (Nielsen et al., ICLR 2025)."""

from ritornello.methods.ac_router.attach import AttachedRouter, attach_ac_router
from ritornello.methods.ac_router.language_model import MoELanguageModel
from ritornello.methods.ac_router.router import ACRouter, AdaptiveWeights
from ritornello.methods.ac_router.softmoe import ACSoftMoE
from ritornello.methods.ac_router.vision import soft_moe_vit, swin_moe
from ritornello.methods.ac_router.weights import adaptive_weights

__all__ = [
    "ACRouter",
    "ACSoftMoE",
    "AdaptiveWeights",
    "AttachedRouter",
    "MoELanguageModel",
    "adaptive_weights",
    "attach_ac_router",
    "soft_moe_vit",
    "swin_moe",
]
