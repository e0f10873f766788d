"""K-HALU: a Korean benchmark of hallucination with several right options, measured both ways."""

from ritornello.methods.k_halu.binary_list import parse_binary_list
from ritornello.methods.k_halu.context_window import truncate_documents
from ritornello.methods.k_halu.data import load_k_halu, sample_from_row
from ritornello.methods.k_halu.harness import write_lm_eval_tasks
from ritornello.methods.k_halu.metrics import (
    decision_mcc,
    expected_chance,
    macro_intervals,
    multilabel_macro,
    set_scores,
)
from ritornello.methods.k_halu.policies import policy_client
from ritornello.methods.k_halu.selection import held_out_deltas, select_top_k, select_within
from ritornello.methods.k_halu.synthetic import make_synthetic_khalu
from ritornello.methods.k_halu.tasks import KHaluExactMatch, KHaluLogLikelihood, KHaluSupport

__all__ = [
    "KHaluExactMatch",
    "KHaluLogLikelihood",
    "KHaluSupport",
    "decision_mcc",
    "expected_chance",
    "held_out_deltas",
    "load_k_halu",
    "macro_intervals",
    "make_synthetic_khalu",
    "multilabel_macro",
    "parse_binary_list",
    "policy_client",
    "sample_from_row",
    "select_top_k",
    "select_within",
    "set_scores",
    "truncate_documents",
    "write_lm_eval_tasks",
]
