"""trl's `DPOTrainer` over shared-prompt pairs, with optional likelihood and replay terms.

Importing this module imports trl.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor
from trl import DPOConfig, DPOTrainer

from ritornello.common.training.language_model_sft import tokenize_row
from ritornello.common.training.preference import (
    PairBatch,
    PreferenceSettings,
    collate_pairs,
    dpo_loss,
    pad_rows,
    pair_logprobs,
    tokenize_pair,
)
from ritornello.common.training.scored_head import tiled_logprobs
from ritornello.common.training.trl_training import on_one_device, with_padding

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_BATCH_FIELDS = tuple(field.name for field in dataclasses.fields(PairBatch))


class SharedPromptDPOTrainer(DPOTrainer):
    """Sigmoid DPO + nll_weight * chosen NLL + replay_weight * NLL of replay rows.

    Built by `preference_trainer`; the reference log-probabilities, taken once from the model as it
    is given, are columns of the data set.

    Args:
        settings: weights of the terms.
        replay: tokenised rows from `tokenize_row`; empty for none.
    """

    def __init__(
        self,
        *,
        settings: PreferenceSettings,
        replay: Sequence[Mapping[str, Sequence[int]]] = (),
        **trainer_arguments: Any,
    ) -> None:
        self.settings = settings
        self.replay = list(replay)
        self.micro_steps = 0
        super().__init__(**trainer_arguments)

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset  # tokenised already, by `tokenize_pair`

    def _precompute_ref_logps(self, dataset: Dataset, name: str, batch_size: int) -> Dataset:
        # trl's own version writes a cache file; these numbers are few and belong to this model.
        columns: tuple[list[float], list[float]] = ([], [])
        model = self.model
        assert model is not None
        training = model.training
        model.eval()
        for start in range(0, len(dataset), batch_size):
            rows = [dataset[i] for i in range(start, min(start + batch_size, len(dataset)))]
            sides = self.compute_ref_log_probs(model, self.data_collator(rows))
            for column, values in zip(columns, sides, strict=True):
                column += values.tolist()
        model.train(training)
        with_chosen = dataset.add_column("ref_chosen_logps", columns[0])
        return with_chosen.add_column("ref_rejected_logps", columns[1])

    def compute_ref_log_probs(
        self, model: torch.nn.Module, inputs: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities (pairs,) of both sides under the model without its adapters."""
        adapters = getattr(self.accelerator.unwrap_model(model), "disable_adapter", nullcontext)
        with torch.no_grad(), adapters(), self.accelerator.autocast():
            return pair_logprobs(model, _pair_batch(inputs, self.accelerator.device))

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Mapping[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: int | None = None,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """The loss of one batch of pairs; with `return_outputs` also its terms, by name."""
        batch = _pair_batch(inputs, self.accelerator.device)
        chosen, rejected = pair_logprobs(model, batch)
        chosen_sizes, rejected_sizes = batch.chosen_mask.sum(1), batch.rejected_mask.sum(1)
        log_probs = [chosen, rejected, inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]]
        if self.settings.length_normalize:
            sizes = [chosen_sizes, rejected_sizes] * 2
            log_probs = [value / size for value, size in zip(log_probs, sizes, strict=True)]
        losses, chosen_reward, rejected_reward = dpo_loss(*log_probs, beta=self.settings.beta)
        loss = losses.mean()
        terms = {"loss/dpo": loss}
        if self.settings.nll_weight:
            terms["loss/nll"] = -(chosen / chosen_sizes).mean()
            loss = loss + self.settings.nll_weight * terms["loss/nll"]
        if self.settings.replay_weight and model.training:
            terms["loss/replay"] = self._replay_loss(model)
            loss = loss + self.settings.replay_weight * terms["loss/replay"]
        terms |= {
            "rewards/margins": (chosen_reward - rejected_reward).mean(),
            "rewards/accuracies": (chosen_reward > rejected_reward).float().mean(),
            "completion_tokens/chosen": chosen_sizes.float().mean(),
            "completion_tokens/rejected": rejected_sizes.float().mean(),
        }
        mode = "train" if model.training else "eval"
        for name, value in terms.items():
            self._metrics[mode][name].append(value.detach().item())
        return (loss, terms) if return_outputs else loss

    def prediction_step(
        self, model: torch.nn.Module, inputs: dict[str, Tensor], *_: Any, **__: Any
    ) -> tuple[Tensor, None, None]:
        """The loss alone, without gradient or replay."""
        with torch.no_grad(), self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
            assert isinstance(loss, Tensor)
            return loss.detach(), None, None

    def _replay_loss(self, model: torch.nn.Module) -> Tensor:
        # The step number is in the seed: a resumed run draws what an unbroken one draws.
        accumulation = self.args.gradient_accumulation_steps
        draw = self.state.global_step * accumulation + self.micro_steps % accumulation
        self.micro_steps += 1
        rank = self.accelerator.process_index
        generator = torch.Generator().manual_seed(
            (self.settings.seed * 1_000_003 + draw) * 1_009 + rank
        )
        chosen = torch.randint(
            len(self.replay), (self.settings.replay_batch_size,), generator=generator
        )
        rows = [self.replay[index] for index in chosen.tolist()]
        ids, mask = pad_rows([row["input_ids"] for row in rows], value=0)
        labels, _ = pad_rows([row["labels"] for row in rows], value=-100)
        # logits only at positions whose next token is labelled in some row
        keep = (labels[:, 1:] != -100).any(0).nonzero().flatten()
        device = self.accelerator.device
        inputs = {
            "input_ids": ids.to(device),
            "attention_mask": mask.to(device),
            "logits_to_keep": keep.to(device),
            "use_cache": False,
        }
        targets = labels[:, keep + 1].to(device)
        counted = targets != -100
        places = torch.arange(len(keep), device=device)
        values = tiled_logprobs(model, inputs, places, targets, counted)
        if values is not None:
            return -values.sum() / counted.sum()
        logits = model(**inputs).logits
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def _pair_batch(inputs: Mapping[str, Tensor], device: torch.device) -> PairBatch:
    return PairBatch(**{name: inputs[name].to(device) for name in _BATCH_FIELDS})


class _PairCollator:
    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, pairs: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = vars(collate_pairs(pairs, self.pad_token_id))
        references = [name for name in pairs[0] if name.startswith("ref_")]
        return batch | {name: torch.tensor([p[name] for p in pairs]) for name in references}


def preference_trainer(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    pairs: Sequence[Mapping[str, Any]],
    settings: PreferenceSettings,
    *,
    output_dir: Path | str,
    replay: Sequence[Mapping[str, Any]] = (),
    use_cpu: bool | None = None,
) -> SharedPromptDPOTrainer:
    """A trainer whose `train()` optimises `model` in place on the pairs.

    Args:
        model: the starting point and, frozen as it is now, the reference.
        tokenizer: with an end-of-sequence token.
        pairs: rows with `prompt` (text or messages), `chosen` and `rejected` (text).
        settings: see `PreferenceSettings`.
        output_dir: checkpoints; nothing is written when `settings.save_steps` is 0.
        replay: rows with `prompt` and `completion`, needed when `replay_weight` > 0.
        use_cpu: keep off the GPU; None uses it when it is there.

    Raises:
        ValueError: no pairs, an unusable pair (see `tokenize_pair`), or replay rows missing.
    """
    if not pairs:
        raise ValueError("pairs must hold at least one pair, got none")
    if settings.replay_weight and not replay:
        raise ValueError(f"replay_weight={settings.replay_weight} needs replay rows, got none")
    pad_token_id = with_padding(tokenizer)
    columns = ("prompt", "chosen", "rejected")
    limit = settings.max_length
    rows = [tokenize_pair(tokenizer, *(p[c] for c in columns), max_length=limit) for p in pairs]
    config = DPOConfig(
        **settings.trainer_arguments(output_dir, use_cpu),
        beta=settings.beta,
        precompute_ref_log_probs=True,
        remove_unused_columns=False,
    )
    return SharedPromptDPOTrainer(
        settings=settings,
        replay=[
            tokenize_row(tokenizer, row["prompt"], row["completion"], max_length=limit)
            for row in replay
        ],
        model=model,
        args=on_one_device(config),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        data_collator=_PairCollator(pad_token_id),
        peft_config=settings.adapters,
    )
