"""Architectures that several papers train, and loaders of embedded and hub checkpoints."""

from ritornello.common.models.embedded import (
    load_efficientnet_lite0,
    load_minilm,
    load_smollm2,
    load_smollm2_tokenizer,
    smollm2_directory,
)
from ritornello.common.models.hub import load_causal_lm, load_sentence_encoder, load_tokenizer
from ritornello.common.models.tiny import tiny_causal_lm

__all__ = [
    "load_causal_lm",
    "load_efficientnet_lite0",
    "load_minilm",
    "load_sentence_encoder",
    "load_smollm2",
    "load_smollm2_tokenizer",
    "load_tokenizer",
    "smollm2_directory",
    "tiny_causal_lm",
]
