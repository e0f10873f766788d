"""Magpie queries, answers and preference pairs, then DPO on them, measured before and after."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ritornello.common.cache import file_lock
from ritornello.common.chat import TransformersClient
from ritornello.common.reporting import Figure, Results, new_figure
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement, UserError
from ritornello.common.training.language_model_sft import SFTSettings, sft_trainer
from ritornello.common.training.preference import (
    PreferenceSettings,
    collate_pairs,
    pair_logprobs,
    tokenize_pair,
)
from ritornello.common.training.trl_training import train
from ritornello.methods.magpie.pipeline import MagpieConfig, MagpiePipeline
from ritornello.methods.magpie.preferences import LikelihoodReward

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class Alignment(Experiment):
    """One cell: the pairs of a seed, one way of training on them, log-probabilities around it.

    Args:
        model: loader of the aligned model, which writes the data and is then trained.
        tokenizer, encoder: loaders.
        data: the Magpie data set; its seed is the cell's.
        held_out: pairs that measure instead of training.
    """

    model: "Callable[[], PreTrainedModel]"
    tokenizer: "Callable[[], PreTrainedTokenizerBase]"
    encoder: Callable[[], Any]
    data: MagpieConfig
    held_out: int = 4

    @cached_property
    def loaded_tokenizer(self) -> "PreTrainedTokenizerBase":
        return self.tokenizer()

    @cached_property
    def policy(self) -> "PreTrainedModel":
        """The model that is trained; its adapters are taken off after every cell."""
        return self.model()

    def measure(
        self, arm: PreferenceSettings | SFTSettings, cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        pairs = self._pairs(cell.seed, context.scratch.parent / f"magpie-{cell.seed}")
        if len(pairs) <= self.held_out:
            raise UserError(
                f"data.n={self.data.n} gave {len(pairs)} preference pairs; more than "
                f"held_out={self.held_out} are needed"
            )
        held, train = pairs[: self.held_out], pairs[self.held_out :]
        yield Measurement("training_pairs", len(train))
        before = self._log_probabilities(self.policy, held)
        settings = replace(arm, seed=cell.seed)
        tuned = _train(self.policy, self.loaded_tokenizer, train, settings, context.scratch)
        tuned.eval()
        after = self._log_probabilities(tuned, held)
        tuned.unload()  # the shared policy is as it was
        chosen = [b[0] - a[0] for a, b in zip(before, after, strict=True)]
        rejected = [b[1] - a[1] for a, b in zip(before, after, strict=True)]
        margins = [c - r for c, r in zip(chosen, rejected, strict=True)]
        for metric, change in (
            ("margin_change", margins),
            ("chosen_change", chosen),
            ("rejected_change", rejected),
        ):
            yield Measurement(metric, sum(change) / len(change), unit="nats", samples=change)
        preferred = [float(b[0] > b[1]) - float(a[0] > a[1]) for a, b in zip(before, after)]
        yield Measurement("preferred_change", sum(preferred) / len(preferred), samples=preferred)

    def _pairs(self, seed: int, folder: Path) -> list[dict[str, Any]]:
        """The data of a seed, made by the first arm that needs it; the pipeline resumes."""
        with file_lock(folder.with_suffix(".lock")):
            client = TransformersClient(self.model(), self.loaded_tokenizer)
            MagpiePipeline(
                replace(self.data, seed=seed),
                llm=client,
                tokenizer=self.loaded_tokenizer,
                encoder=self.encoder(),
                reward=LikelihoodReward(client),
            ).run(folder)
        with (folder / "preferences.jsonl").open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        return [
            {
                "prompt": row["chosen"][:-1],
                "chosen": row["chosen"][-1]["content"],
                "rejected": row["rejected"][-1]["content"],
            }
            for row in rows
        ]

    @torch.inference_mode()
    def _log_probabilities(
        self, model: Any, pairs: Sequence[dict[str, Any]]
    ) -> list[tuple[float, float]]:
        """Summed log-probabilities of the chosen and the rejected answer of every pair."""
        rows = [
            tokenize_pair(
                self.loaded_tokenizer, p["prompt"], p["chosen"], p["rejected"], max_length=2048
            )
            for p in pairs
        ]
        device = next(model.parameters()).device
        batch = collate_pairs(rows, self.loaded_tokenizer.pad_token_id)
        moved = replace(batch, **{k: v.to(device) for k, v in vars(batch).items()})
        chosen, rejected = pair_logprobs(model, moved)
        return list(zip(chosen.tolist(), rejected.tolist(), strict=True))


def _train(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    pairs: Sequence[dict[str, Any]],
    settings: PreferenceSettings | SFTSettings,
    scratch: Path,
) -> Any:
    """DPO on the pairs, or supervised training on the chosen answers; LoRA in both."""
    if isinstance(settings, PreferenceSettings):
        from ritornello.common.training.preference_trainer import preference_trainer

        trainer = preference_trainer(model, tokenizer, pairs, settings, output_dir=scratch / "dpo")
    else:
        rows = [{"prompt": p["prompt"], "completion": p["chosen"]} for p in pairs]
        trainer = sft_trainer(model, tokenizer, rows, settings, output_dir=scratch / "sft")
    train(trainer, resume=True)
    return trainer.model


def figures(results: Results) -> Iterator[Figure]:
    """What training did to the held-out answers."""
    figure, axes = new_figure(width=6.5)
    metrics = ["chosen_change", "rejected_change", "margin_change"]
    arms = list(dict.fromkeys(results.select("alignment")["arm"]))
    for position, arm in enumerate(arms):
        for index, metric in enumerate(metrics):
            rows = results.select("alignment", metric, arm)
            samples = [value for row in rows["samples"] for value in row]
            x = index + (position - (len(arms) - 1) / 2) * 0.25
            label = arm.replace("_", " ") if index == 0 else None
            axes.plot([x] * len(samples), samples, "o", alpha=0.45, color=f"C{position}")
            mean = sum(samples) / len(samples)
            axes.plot([x - 0.09, x + 0.09], [mean, mean], color=f"C{position}", lw=3, label=label)
    axes.axhline(0, color="0.5", lw=0.8)
    axes.set_xticks(range(len(metrics)), [m.removesuffix("_change") for m in metrics])
    axes.set_ylabel("change of log-probability (nats)")
    axes.legend()
    yield Figure(
        "held_out_changes",
        "Change of the log-probability of held-out chosen and rejected answers, and of their "
        "margin, after training on Magpie pairs; one dot a pair, bars are means.",
        figure,
    )
