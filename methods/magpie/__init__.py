"""Magpie: instruction data out of an aligned model that is prompted with nothing."""

from ritornello.methods.magpie.baselines import InContextResponder, SelfInstructGenerator
from ritornello.methods.magpie.config import MagpieConfig
from ritornello.methods.magpie.dedup import NearestNeighborDeduplicator
from ritornello.methods.magpie.export import to_sharegpt, to_trl_dpo, to_trl_sft
from ritornello.methods.magpie.filters import FILTERS, filter_rows, longest
from ritornello.methods.magpie.generator import DOMAIN_SYSTEMS, Instruction, MagpieGenerator
from ritornello.methods.magpie.pipeline import MagpiePipeline
from ritornello.methods.magpie.preferences import (
    LikelihoodReward,
    SequenceReward,
    build_preferences,
)
from ritornello.methods.magpie.sanitizer import sanitize_instruction
from ritornello.methods.magpie.tags import (
    GuardTagger,
    JudgeTagger,
    LanguageTagger,
    LikelihoodTagger,
)
from ritornello.methods.magpie.templates import ChatTemplateParts

# fmt: off
__all__ = [
    "DOMAIN_SYSTEMS", "FILTERS", "ChatTemplateParts", "GuardTagger", "InContextResponder",
    "Instruction", "JudgeTagger", "LanguageTagger", "LikelihoodReward", "LikelihoodTagger",
    "MagpieConfig", "MagpieGenerator", "MagpiePipeline", "NearestNeighborDeduplicator",
    "SelfInstructGenerator", "SequenceReward", "build_preferences", "filter_rows", "longest",
    "sanitize_instruction", "to_sharegpt", "to_trl_dpo", "to_trl_sft",
]
