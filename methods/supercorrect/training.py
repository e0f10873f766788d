"""The two training stages, in order: HSFT, then cross-model DPO against the HSFT model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ritornello.common.training.language_model_sft import SFTSettings
from ritornello.common.training.preference import PreferenceSettings
from ritornello.common.training.trl_training import train

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PAPER_HSFT = SFTSettings(
    learning_rate=2e-5, epochs=4, batch_size=128, micro_batch_size=8, warmup_ratio=0.02
)
"""Sec. 4: batch 8 x accumulation 16; the paper prints the rate as "2e5"."""
PAPER_CROSS_DPO = PreferenceSettings(
    beta=0.1, learning_rate=1e-6, epochs=8, batch_size=128, micro_batch_size=8, warmup_ratio=0.05
)
"""Sec. 4; the paper does not state beta: 0.1 is trl's default."""


class SuperCorrectTrainer:
    """Trains a model in two stages. Stage 2 starts from, and is held near, stage 1's result.

    Args:
        model: a transformers causal language model; trained in place.
        tokenizer: with an end-of-sequence token and, for message prompts, a chat template.
        output_dir: checkpoints of both stages.
        hsft_done: the model is an HSFT model already.
        use_cpu: keep off the GPU; None uses it when it is there.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        *,
        output_dir: Path | str,
        hsft_done: bool = False,
        use_cpu: bool | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.output_dir = Path(output_dir)
        self.hsft_done = hsft_done
        self.use_cpu = use_cpu

    def hsft(
        self, rows: Sequence[Mapping[str, Any]], settings: SFTSettings = PAPER_HSFT
    ) -> list[dict[str, float]]:
        """Stage 1: maximises log pi(thought | student prompt, problem) (sec. 3.1).

        Args:
            rows: `prompt` and `completion`, from `build_hsft_dataset`.
            settings: the paper's by default.

        Returns:
            The training log.
        """
        from ritornello.common.training.language_model_sft import sft_trainer

        trainer = sft_trainer(
            self.model,
            self.tokenizer,
            rows,
            settings,
            output_dir=self.output_dir / "hsft",
            use_cpu=self.use_cpu,
        )
        log = train(trainer, resume=settings.save_steps > 0)
        self.model = _merged(trainer.model)
        self.hsft_done = True
        return log

    def cross_dpo(
        self,
        pairs: Sequence[Mapping[str, Any]],
        settings: PreferenceSettings = PAPER_CROSS_DPO,
        *,
        replay: Sequence[Mapping[str, Any]] = (),
    ) -> list[dict[str, float]]:
        """Stage 2: eq. 8 on pairs of corrections; the reference is the model as it is now.

        Args:
            pairs: `prompt`, `chosen`, `rejected`, from `build_correction_pairs`.
            settings: the paper's by default.
            replay: `prompt` and `completion` rows that a small model must not forget.

        Returns:
            The training log: loss terms, reward margin and accuracy.

        Raises:
            ValueError: stage 1 has not been run.
        """
        if not self.hsft_done:
            raise ValueError(
                "cross_dpo must start from an HSFT model: call hsft first, or pass hsft_done=True "
                "for a model that is one, got hsft_done=False"
            )
        from ritornello.common.training.preference_trainer import preference_trainer

        trainer = preference_trainer(
            self.model,
            self.tokenizer,
            pairs,
            settings,
            output_dir=self.output_dir / "cross_dpo",
            replay=replay,
            use_cpu=self.use_cpu,
        )
        log = train(trainer, resume=settings.save_steps > 0)
        self.model = _merged(trainer.model)
        return log


def _merged(model: Any) -> "PreTrainedModel":
    # Adapters are folded in, so that the next stage's reference is this stage's result.
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
