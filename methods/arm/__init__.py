"""ARM: autoregressive pretraining of vision Mamba (Ren et al., ICLR 2025)."""

from ritornello.methods.arm.backbone import MambaMLPBlock
from ritornello.methods.arm.baselines import MAEForPretraining
from ritornello.methods.arm.checkpoints import convert_pretrained, load_official_checkpoint
from ritornello.methods.arm.classifier import ARMForImageClassification
from ritornello.methods.arm.hf_mamba import patch_transformers_mamba
from ritornello.methods.arm.mixer import MambaMixer
from ritornello.methods.arm.pretraining import ARMForPretraining

__all__ = [
    "ARMForImageClassification",
    "ARMForPretraining",
    "MAEForPretraining",
    "MambaMLPBlock",
    "MambaMixer",
    "convert_pretrained",
    "load_official_checkpoint",
    "patch_transformers_mamba",
]
