"""Model Equality Testing: which model is this API serving? (ICLR 2025)."""

from ritornello.methods.model_equality_testing.audit import (
    AuditReport,
    AuditSettings,
    CostEstimate,
    audit_endpoint,
    estimate_cost,
)
from ritornello.methods.model_equality_testing.goodness_of_fit import (
    CompletionDistribution,
    goodness_of_fit_test,
)
from ritornello.methods.model_equality_testing.power import PowerEstimate, estimate_power
from ritornello.methods.model_equality_testing.sample import (
    CompletionSample,
    encode_tokens,
    encode_unicode,
    pad_after_end,
)
from ritornello.methods.model_equality_testing.statistics import Statistic
from ritornello.methods.model_equality_testing.two_sample import (
    TestResult,
    bonferroni,
    bootstrap_null,
    composite_test,
    mmd_statistic,
    pairwise_mmd,
    statistic_of,
    two_sample_test,
)

__all__ = [
    "AuditReport", "AuditSettings", "CompletionDistribution", "CompletionSample", "CostEstimate",
    "PowerEstimate", "Statistic", "TestResult", "audit_endpoint", "bonferroni", "bootstrap_null",
    "composite_test", "encode_tokens", "encode_unicode", "estimate_cost", "estimate_power",
    "goodness_of_fit_test", "mmd_statistic", "pad_after_end", "pairwise_mmd", "statistic_of",
    "two_sample_test",
]  # fmt: skip
