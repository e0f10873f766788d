"""Supervised fine-tuning of a causal language model on completions, by trl's `SFTTrainer`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ritornello.common.training.preference import tokenize_prompt

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from trl import SFTTrainer


@dataclass(frozen=True)
class SFTSettings:
    """Everything a fine-tuning run needs besides model and rows.

    Args:
        learning_rate: peak of the cosine schedule.
        epochs: passes over the rows; ignored where `max_steps` is given.
        max_steps: optimiser steps.
        batch_size: rows per optimiser step on one process; a multiple of `micro_batch_size`.
        micro_batch_size: rows per forward pass.
        warmup_ratio: share of the steps with rising learning rate.
        max_length: most tokens of prompt + completion. Longer rows are refused, never cut.
        lora_rank: rank of LoRA adapters on all linear layers; 0 trains all weights.
        seed: order of the rows.
        save_steps: a checkpoint every that many steps; 0 writes none.
        gradient_checkpointing: recompute activations in the backward pass, for large models.
        bf16: bfloat16 autocast.
    """

    learning_rate: float = 2e-5
    epochs: float = 1.0
    max_steps: int = -1
    batch_size: int = 8
    micro_batch_size: int | None = None
    warmup_ratio: float = 0.02
    max_length: int = 2048
    lora_rank: int = 0
    seed: int = 0
    save_steps: int = 0
    gradient_checkpointing: bool = False
    bf16: bool = False

    def __post_init__(self) -> None:
        micro = self.batch_size if self.micro_batch_size is None else self.micro_batch_size
        if micro < 1 or self.batch_size % micro:
            raise ValueError(
                f"batch_size must be a multiple of micro_batch_size={micro}, got {self.batch_size}"
            )


def linear_lora(rank: int) -> "LoraConfig":
    """LoRA of the given rank (alpha = 2 * rank) on every linear layer but the output head."""
    from peft import LoraConfig

    return LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def tokenize_completion(
    tokenizer: "PreTrainedTokenizerBase",
    prompt: str | Sequence[Mapping[str, str]],
    completion: str,
    *,
    max_length: int,
) -> dict[str, list[int]]:
    """`input_ids` of prompt + completion + end of sequence, and `labels` on the completion alone.

    Raises:
        ValueError: an empty prompt or completion, or more than `max_length` tokens.
    """
    if not completion.strip():
        raise ValueError(f"completion must not be empty, got {completion!r}")
    prompt_ids = tokenize_prompt(tokenizer, prompt)
    completion_ids = tokenizer(completion, add_special_tokens=False)["input_ids"]
    if completion_ids[-1] != tokenizer.eos_token_id:
        completion_ids = [*completion_ids, tokenizer.eos_token_id]
    if len(prompt_ids) + len(completion_ids) > max_length:
        raise ValueError(
            f"prompt + completion must have at most max_length={max_length} tokens, "
            f"got {len(prompt_ids)} + {len(completion_ids)}"
        )
    return {
        "input_ids": [*prompt_ids, *completion_ids],
        "labels": [-100] * len(prompt_ids) + completion_ids,
    }


def sft_trainer(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: Sequence[Mapping[str, Any]],
    settings: SFTSettings,
    *,
    output_dir: Path | str,
    use_cpu: bool | None = None,
) -> "SFTTrainer":
    """A trl trainer whose `train()` fits `model` in place to the completions alone.

    Args:
        model: trained in place (its adapters, with `settings.lora_rank`).
        tokenizer: with an end-of-sequence token.
        rows: `prompt` (text or messages) and `completion` (text).
        settings: see `SFTSettings`.
        output_dir: checkpoints; nothing is written when `settings.save_steps` is 0.
        use_cpu: keep off the GPU; None uses it when it is there.

    Raises:
        ValueError: no rows, or an unusable one (see `tokenize_completion`).
    """
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    if not rows:
        raise ValueError("rows must hold at least one row, got none")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenized = [
        tokenize_completion(
            tokenizer, row["prompt"], row["completion"], max_length=settings.max_length
        )
        for row in rows
    ]
    micro = settings.micro_batch_size or settings.batch_size
    cpu = not torch.cuda.is_available() if use_cpu is None else use_cpu
    config = SFTConfig(
        output_dir=str(output_dir),
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=settings.batch_size // micro,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup_ratio,
        max_length=None,  # lengths are checked when the rows are tokenised
        seed=settings.seed,
        data_seed=settings.seed,
        save_strategy="steps" if settings.save_steps else "no",
        save_steps=settings.save_steps or 500,
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,
        gradient_checkpointing=settings.gradient_checkpointing,
        bf16=settings.bf16,
        use_cpu=cpu,
        dataloader_pin_memory=not cpu,
    )
    trainer = SFTTrainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_list(tokenized),
        processing_class=tokenizer,
        peft_config=linear_lora(settings.lora_rank) if settings.lora_rank else None,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def newest_checkpoint(folder: Path | str) -> str | None:
    """The last complete checkpoint of an output folder, None when there is none."""
    from transformers.trainer_utils import get_last_checkpoint

    return get_last_checkpoint(str(folder)) if Path(folder).is_dir() else None


def train_completions(trainer: "SFTTrainer", *, resume: bool = False) -> list[dict[str, float]]:
    """Trains; with `resume`, from the newest checkpoint in the output folder if there is one.

    Returns:
        The log: one row every ten steps.
    """
    folder = trainer.args.output_dir
    assert folder is not None
    checkpoint = newest_checkpoint(folder) if resume else None
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer.state.log_history
