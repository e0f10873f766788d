"""Training on what was synthesised: supervised on the answers, then preferences by DPO."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ritornello.common.training.language_model_sft import SFTSettings, sft_trainer
from ritornello.common.training.preference import PreferenceSettings, tokenize_pair
from ritornello.common.training.trl_training import train
from ritornello.methods.magpie.export import to_trl_dpo, to_trl_sft

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# the paper's table of hyper-parameters: lr 2e-5, cosine, batch 32, 2 epochs, 100 warm-up steps of
# the 18,750 that 300,000 rows take
PAPER_SFT = SFTSettings(
    learning_rate=2e-5,
    epochs=2,
    batch_size=32,
    micro_batch_size=1,
    warmup_ratio=100 / 18_750,
    max_length=8192,
)
# ... and for DPO: lr 5e-7, batch 128, 1 epoch, warm-up 10 %, beta 0.01
PAPER_DPO = PreferenceSettings(
    beta=0.01, learning_rate=5e-7, batch_size=128, micro_batch_size=1, warmup_ratio=0.1
)


def finetune_on_rows(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: Sequence[Mapping[str, object]],
    settings: SFTSettings = PAPER_SFT,
    *,
    output_dir: str | Path,
) -> "PreTrainedModel":
    """Fits a model to the last answer of every row, by trl's SFT trainer (loss on answers only).

    Args:
        model: the model; with `settings.lora_rank` only adapters are trained.
        tokenizer: its tokenizer.
        rows: with `instruction` and `response` (and further turns).
        settings: hyper-parameters; training continues from a checkpoint in `output_dir`.
        output_dir: checkpoints.

    Returns:
        The trained model; with LoRA, the model with its adapters.
    """
    pairs = [
        {"prompt": row["prompt"], "completion": row["completion"][0]["content"]}
        for row in to_trl_sft(rows)
    ]
    trainer = sft_trainer(model, tokenizer, pairs, settings, output_dir=output_dir)
    train(trainer, resume=True)
    return cast("PreTrainedModel", trainer.model)


def usable_pairs(
    tokenizer: "PreTrainedTokenizerBase", rows: Sequence[Mapping[str, Any]], *, max_length: int
) -> list[dict[str, Any]]:
    """Rows of `build_preferences` as `prompt` (messages), `chosen` and `rejected` (texts).

    Rows with an empty answer, with equal answers, or longer than `max_length` tokens are left out.
    """
    usable = []
    for row in to_trl_dpo(rows):
        chosen, rejected = row["chosen"][0]["content"], row["rejected"][0]["content"]
        try:
            tokenize_pair(tokenizer, row["prompt"], chosen, rejected, max_length=max_length)
        except ValueError:
            continue
        usable.append({"prompt": row["prompt"], "chosen": chosen, "rejected": rejected})
    return usable


def align_on_pairs(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    pairs: Sequence[Mapping[str, Any]],
    settings: PreferenceSettings = PAPER_DPO,
    *,
    output_dir: str | Path,
) -> "PreTrainedModel":
    """DPO on preference pairs; the reference is the model as it is given.

    Args:
        model: the fine-tuned model; with `settings.lora_rank` only adapters are trained.
        tokenizer: its tokenizer.
        pairs: from `usable_pairs`.
        settings: hyper-parameters; training continues from a checkpoint in `output_dir`.
        output_dir: checkpoints.

    Returns:
        The trained model; with LoRA, the model with its adapters.
    """
    from ritornello.common.training.preference_trainer import preference_trainer

    trainer = preference_trainer(model, tokenizer, pairs, settings, output_dir=output_dir)
    train(trainer, resume=True)
    return cast("PreTrainedModel", trainer.model)
