"""Training on what was synthesised: supervised fine-tuning on the answers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ritornello.common.training.language_model_sft import SFTSettings, sft_trainer
from ritornello.common.training.trl_training import train
from ritornello.methods.magpie.export import to_trl_sft

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# lr 2e-5, cosine, batch 32, 2 epochs: the paper's table of hyper-parameters
PAPER_SFT = SFTSettings(
    learning_rate=2e-5, epochs=2, batch_size=32, micro_batch_size=1, max_length=8192
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
