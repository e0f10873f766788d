"""What supervised and preference training by trl share: settings, adapters, tokens, resuming."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments

Arguments = TypeVar("Arguments", bound="TrainingArguments")
TextPrompt = str | Sequence[Mapping[str, str]]
"""Raw text, or messages for the chat template."""


@dataclass(frozen=True)
class TrainingSettings:
    """Everything a training run needs besides model and rows, whatever its loss.

    Args:
        learning_rate: peak of the cosine schedule.
        epochs: passes over the rows; ignored where `max_steps` is given.
        max_steps: optimiser steps.
        batch_size: rows per optimiser step on one process; a multiple of `micro_batch_size`.
        micro_batch_size: rows per forward pass; None takes the whole batch at once.
        warmup_ratio: share of the steps with rising learning rate.
        max_length: most tokens of prompt + completion. Longer rows are refused, never cut.
        lora_rank: rank of LoRA adapters on all linear layers; 0 trains all weights.
        seed: order of the rows.
        save_steps: a checkpoint every that many steps; 0 writes none.
        gradient_checkpointing: recompute activations in the backward pass, for large models.
        bf16: bfloat16 autocast.

    Raises:
        ValueError: batch sizes that do not divide, or a negative rank.
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
        if self.lora_rank < 0:
            raise ValueError(f"lora_rank must be >= 0, got {self.lora_rank}")

    def trainer_arguments(self, output_dir: Path | str, use_cpu: bool | None) -> dict[str, Any]:
        """The settings under the names of `transformers.TrainingArguments`.

        Args:
            output_dir: checkpoints.
            use_cpu: keep off the GPU; None uses it when it is there.
        """
        micro = self.micro_batch_size or self.batch_size
        cpu = not torch.cuda.is_available() if use_cpu is None else use_cpu
        return {
            "output_dir": str(output_dir),
            "learning_rate": self.learning_rate,
            "num_train_epochs": self.epochs,
            "max_steps": self.max_steps,
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": self.batch_size // micro,
            "lr_scheduler_type": "cosine",
            "warmup_steps": self.warmup_ratio,  # below 1 it is a share of the steps
            "max_length": None,  # lengths are checked when the rows are tokenised
            "seed": self.seed,
            "data_seed": self.seed,
            "save_strategy": "steps" if self.save_steps else "no",
            "save_steps": self.save_steps or 500,
            # every checkpoint lies on a row of the log, whose means would lose steps otherwise
            "logging_steps": math.gcd(10, self.save_steps),
            "report_to": "none",
            "disable_tqdm": True,
            "gradient_checkpointing": self.gradient_checkpointing,
            "bf16": self.bf16,
            "use_cpu": cpu,
            "dataloader_pin_memory": not cpu,
        }

    @property
    def adapters(self) -> "LoraConfig | None":
        """LoRA (alpha = 2 * rank) on every linear layer but the output head; None at rank 0."""
        if not self.lora_rank:
            return None
        from peft import LoraConfig

        return LoraConfig(
            r=self.lora_rank,
            lora_alpha=2 * self.lora_rank,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )


def on_one_device(arguments: "Arguments") -> "Arguments":
    """Keeps a process that sees several GPUs on one: trl refuses to split a batch over them."""
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1
    return arguments


def with_padding(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The padding token's id; a tokenizer without one pads with its end-of-sequence token."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    assert isinstance(tokenizer.pad_token_id, int)
    return tokenizer.pad_token_id


def tokenize_prompt(tokenizer: "PreTrainedTokenizerBase", prompt: TextPrompt) -> list[int]:
    """Ids of a text prompt as it stands, or of messages under the chat template.

    Raises:
        ValueError: a prompt without a token.
    """
    if isinstance(prompt, str):
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    else:
        continues = prompt[-1]["role"] == "assistant"
        text = tokenizer.apply_chat_template(
            [dict(message) for message in prompt],
            tokenize=False,
            add_generation_prompt=not continues,
            continue_final_message=continues,
        )
        assert isinstance(text, str)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ValueError(f"prompt must have at least one token, got {prompt!r}")
    return ids


def tokenize_completion(
    tokenizer: "PreTrainedTokenizerBase",
    text: str,
    *,
    prompt_tokens: int,
    max_length: int,
    name: str = "completion",
) -> list[int]:
    """Ids of a completion, closed by the end-of-sequence token.

    Prompt and completion are tokenised apart, so that nothing merges across.

    Args:
        tokenizer: with an end-of-sequence token.
        text: the completion.
        prompt_tokens: length of what stands before it.
        max_length: most tokens of prompt + completion.
        name: what the text is called in messages.

    Raises:
        ValueError: an empty completion, or more than `max_length` tokens.
    """
    if not text.strip():
        raise ValueError(f"{name} must not be empty, got {text!r}")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if ids[-1] != tokenizer.eos_token_id:
        ids = [*ids, tokenizer.eos_token_id]
    if prompt_tokens + len(ids) > max_length:
        raise ValueError(
            f"prompt + {name} must have at most max_length={max_length} tokens, "
            f"got {prompt_tokens} + {len(ids)}"
        )
    return ids


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint: a run killed while it wrote one leaves it without its state."""
    found = folder.glob("checkpoint-*")
    for path in sorted(found, key=lambda p: int(p.name.rpartition("-")[2]), reverse=True):
        try:
            json.loads((path / "trainer_state.json").read_text())  # what is written last
        except (FileNotFoundError, json.JSONDecodeError):
            continue
        return path
    return None


def train(trainer: "Trainer", *, resume: bool = False) -> list[dict[str, float]]:
    """Trains; with `resume`, from the newest whole checkpoint in the output folder if there is one.

    Weights and loss curve are those of an unbroken run. Only what counts since the resume differs:
    trl's `num_tokens`, and `train_loss` and the times of the last row.

    Returns:
        The log: one row every ten steps, or more often where checkpoints lie between (loss terms;
        for preferences also margin and accuracy).
    """
    from transformers.trainer_callback import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    assert trainer.args.output_dir is not None
    checkpoint = last_checkpoint(Path(trainer.args.output_dir)) if resume else None
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    # the model's forward is its own again, without the autocast of the training
    trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    return trainer.state.log_history
