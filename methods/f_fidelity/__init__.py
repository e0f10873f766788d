"""F-Fidelity: judge explainers by removal, with a judge that was fine-tuned to removal."""

from ritornello.methods.f_fidelity.agreement import RankAgreement, rank_agreement
from ritornello.methods.f_fidelity.baselines import roar
from ritornello.methods.f_fidelity.curves import removal_curve
from ritornello.methods.f_fidelity.degrade import degrade
from ritornello.methods.f_fidelity.explainers import (
    captum_explainer,
    gradcam,
    integrated_gradients,
    saliency,
    smoothgrad_sq,
)
from ritornello.methods.f_fidelity.explanation_size import explanation_size
from ritornello.methods.f_fidelity.fidelity import (
    FidelityResult,
    f_fidelity,
    fidelity,
    r_fidelity,
)
from ritornello.methods.f_fidelity.finetune import RandomRemoval, RandomRemovalFinetune
from ritornello.methods.f_fidelity.removal import RemovalSpec
from ritornello.methods.f_fidelity.report import JudgeReport, degradation_curves, judge_report

__all__ = [
    "FidelityResult", "JudgeReport", "RandomRemoval", "RandomRemovalFinetune", "RankAgreement",
    "RemovalSpec", "captum_explainer", "degradation_curves", "degrade", "explanation_size",
    "f_fidelity", "fidelity", "gradcam", "integrated_gradients", "judge_report", "r_fidelity",
    "rank_agreement", "removal_curve", "roar", "saliency", "smoothgrad_sq",
]  # fmt: skip
