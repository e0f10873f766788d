"""Supervised fine-tuning of a causal language model on completions, by trl's `SFTTrainer`.

trl projects the positions of the completion alone onto the vocabulary, in tiles: the logits of a
whole sequence are never held.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ritornello.common.training.trl_training import (
    TextPrompt,
    TrainingSettings,
    on_one_device,
    tokenize_completion,
    tokenize_prompt,
    with_padding,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from trl import SFTTrainer


@dataclass(frozen=True)
class SFTSettings(TrainingSettings):
    """`TrainingSettings` as they are: the loss has no settings of its own."""


def tokenize_row(
    tokenizer: "PreTrainedTokenizerBase", prompt: TextPrompt, completion: str, *, max_length: int
) -> dict[str, list[int]]:
    """`input_ids` of prompt + completion + end of sequence, and `labels` on the completion alone.

    Raises:
        ValueError: an empty prompt or completion, or more than `max_length` tokens.
    """
    before = tokenize_prompt(tokenizer, prompt)
    after = tokenize_completion(
        tokenizer, completion, prompt_tokens=len(before), max_length=max_length
    )
    return {"input_ids": [*before, *after], "labels": [-100] * len(before) + after}


def sft_trainer(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: Sequence[Mapping[str, Any]],
    settings: SFTSettings,
    *,
    output_dir: Path | str,
    use_cpu: bool | None = None,
) -> "SFTTrainer":
    """A trl trainer that fits `model` in place to the completions alone; `train` runs it.

    Args:
        model: trained in place (its adapters, with `settings.lora_rank`).
        tokenizer: with an end-of-sequence token.
        rows: `prompt` (text or messages) and `completion` (text).
        settings: see `TrainingSettings`.
        output_dir: checkpoints; nothing is written when `settings.save_steps` is 0.
        use_cpu: keep off the GPU; None uses it when it is there.

    Raises:
        ValueError: no rows, or an unusable one (see `tokenize_row`).
    """
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    if not rows:
        raise ValueError("rows must hold at least one row, got none")
    with_padding(tokenizer)
    limit = settings.max_length
    tokenized = [
        tokenize_row(tokenizer, row["prompt"], row["completion"], max_length=limit) for row in rows
    ]
    return SFTTrainer(
        model=model,
        args=on_one_device(SFTConfig(**settings.trainer_arguments(output_dir, use_cpu))),
        train_dataset=Dataset.from_list(tokenized),
        processing_class=tokenizer,
        peft_config=settings.adapters,
    )
