"""Tiny random checkpoints of the real architectures, for tests and smoke runs."""

from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Architecture = Literal["llama", "mistral", "qwen2", "opt"]


def tiny_causal_lm(
    architecture: Architecture = "llama",
    *,
    layers: int = 2,
    width: int = 64,
    hidden: int = 128,
    heads: int = 4,
    key_value_heads: int = 2,
    vocabulary: int = 256,
    max_positions: int = 512,
    tie_embeddings: bool = False,
    seed: int = 0,
) -> "PreTrainedModel":
    """A random transformers model of the given family, seeded, fp32, in evaluation mode."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    if architecture not in ("llama", "mistral", "qwen2", "opt"):
        raise ValueError(f"architecture must be llama, mistral, qwen2 or opt, got {architecture!r}")
    shared: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": tie_embeddings,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    if architecture == "opt":
        family: dict[str, Any] = {"ffn_dim": hidden, "word_embed_proj_dim": width}
    else:
        family = {"intermediate_size": hidden, "num_key_value_heads": key_value_heads}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[architecture](**shared, **family))
    return model.float().eval()
