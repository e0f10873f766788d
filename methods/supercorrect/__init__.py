"""SuperCorrect: hierarchical thought distillation and cross-model DPO on corrections."""

from ritornello.methods.supercorrect.answers import answers_equal, extract_answer
from ritornello.methods.supercorrect.building import (
    build_correction_pairs,
    build_hsft_dataset,
    collect_errors,
)
from ritornello.methods.supercorrect.evaluation import evaluate_correction
from ritornello.methods.supercorrect.loss import cross_dpo_loss, sequence_logprob
from ritornello.methods.supercorrect.protocols import (
    EvaluationProtocol,
    few_shot_protocol,
    instruction_protocol,
    native_protocol,
    pass_at_1,
)
from ritornello.methods.supercorrect.records import ErrorCase, MathProblem
from ritornello.methods.supercorrect.solving import solve
from ritornello.methods.supercorrect.teachers import (
    LLMInspector,
    LLMTeacher,
    OracleTeacher,
    TeacherClient,
)
from ritornello.methods.supercorrect.templates import CorrectionTemplate, HierarchicalTemplate
from ritornello.methods.supercorrect.traces import Step, Trace, parse_trace, render_trace
from ritornello.methods.supercorrect.training import SuperCorrectTrainer

__all__ = [
    "CorrectionTemplate",
    "ErrorCase",
    "EvaluationProtocol",
    "HierarchicalTemplate",
    "LLMInspector",
    "LLMTeacher",
    "MathProblem",
    "OracleTeacher",
    "Step",
    "SuperCorrectTrainer",
    "TeacherClient",
    "Trace",
    "answers_equal",
    "build_correction_pairs",
    "build_hsft_dataset",
    "collect_errors",
    "cross_dpo_loss",
    "evaluate_correction",
    "extract_answer",
    "few_shot_protocol",
    "instruction_protocol",
    "native_protocol",
    "parse_trace",
    "pass_at_1",
    "render_trace",
    "sequence_logprob",
    "solve",
]
