"""CoMM: what to align in multimodal contrastive learning."""

from ritornello.methods.comm.adapters import (
    FeaturesInputAdapter,
    PatchedInputAdapter,
    SimpleFeaturesInputAdapter,
)
from ritornello.methods.comm.baselines import (
    CLIPLoss,
    CMCLoss,
    CrossModal,
    CrossSelf,
    CrossSelfLoss,
    FineTuned,
    SupCon,
    Supervised,
    supcon_loss,
)
from ritornello.methods.comm.encoder import MultimodalEncoder
from ritornello.methods.comm.factorcl import FactorCL, FactorCLLoss
from ritornello.methods.comm.fusion import FusionTransformer
from ritornello.methods.comm.loss import CoMMLoss, LossOutput, nt_xent
from ritornello.methods.comm.model import CoMM, interaction_report
from ritornello.methods.comm.probe import linear_probe
from ritornello.methods.comm.trifeatures import BimodalTrifeatures

__all__ = [
    "BimodalTrifeatures",
    "CLIPLoss",
    "CMCLoss",
    "CoMM",
    "CoMMLoss",
    "CrossModal",
    "CrossSelf",
    "CrossSelfLoss",
    "FactorCL",
    "FactorCLLoss",
    "FeaturesInputAdapter",
    "FineTuned",
    "FusionTransformer",
    "LossOutput",
    "MultimodalEncoder",
    "PatchedInputAdapter",
    "SimpleFeaturesInputAdapter",
    "SupCon",
    "Supervised",
    "interaction_report",
    "linear_probe",
    "nt_xent",
    "supcon_loss",
]
