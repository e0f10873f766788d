"""F-Fidelity: judge explainers by removal, with a judge that was fine-tuned to removal."""

from ritornello.methods.f_fidelity.agreement import RankAgreement, micro_rank, rank_agreement
from ritornello.methods.f_fidelity.baselines import roar, roar_batches
from ritornello.methods.f_fidelity.curves import Sampling, removal_curve
from ritornello.methods.f_fidelity.degrade import degrade
from ritornello.methods.f_fidelity.explanation_size import explanation_size
from ritornello.methods.f_fidelity.fidelity import (
    FidelityResult,
    f_fidelity,
    fidelity,
    r_fidelity,
)
from ritornello.methods.f_fidelity.finetune import RandomRemoval, finetune_judge, train_classifier
from ritornello.methods.f_fidelity.removal import RemovalSpec
from ritornello.methods.f_fidelity.report import JudgeReport, degradation_curves, judge_report

__all__ = [
    "FidelityResult", "JudgeReport", "RandomRemoval", "RankAgreement", "RemovalSpec", "Sampling",
    "degradation_curves", "degrade", "explanation_size", "f_fidelity", "fidelity", "finetune_judge",
    "judge_report", "micro_rank", "r_fidelity", "rank_agreement", "removal_curve", "roar",
    "roar_batches", "train_classifier",
]  # fmt: skip
