"""Magpie queries, answers and preference pairs, then DPO on them, measured before and after."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ritornello.common.cache import file_lock
from ritornello.common.chat import TransformersClient
from ritornello.common.reporting import Figure, Results, new_figure
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement, UserError
from ritornello.common.training.language_model_sft import SFTSettings
from ritornello.common.training.preference import PreferenceSettings, text_pair_logprobs
from ritornello.methods.magpie.config import MagpieConfig
from ritornello.methods.magpie.finetune import align_on_pairs, finetune_on_rows, usable_pairs
from ritornello.methods.magpie.pipeline import MagpiePipeline
from ritornello.methods.magpie.preferences import LikelihoodReward, Reward

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_MAX_TOKENS = 2048  # of a pair's prompt and answer


@dataclass
class Alignment(Experiment):
    """One cell: the pairs of a seed, one way of training on them, log-probabilities around it.

    Args:
        model: loader of the aligned model, which writes the data and is then trained.
        tokenizer, encoder: loaders.
        data: the Magpie data set; its seed is the cell's.
        held_out: pairs that measure instead of training.
        reward: loader of the reward model; None takes the likelihood stand-in.
    """

    model: "Callable[[], PreTrainedModel]"
    tokenizer: "Callable[[], PreTrainedTokenizerBase]"
    encoder: Callable[[], Any]
    data: MagpieConfig
    held_out: int = 4
    reward: Callable[[], Reward] | None = None

    @cached_property
    def loaded_tokenizer(self) -> "PreTrainedTokenizerBase":
        return self.tokenizer()

    @cached_property
    def policy(self) -> "PreTrainedModel":
        """Writes the data and is trained; its adapters are taken off after every cell."""
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
        before = text_pair_logprobs(self.policy, self.loaded_tokenizer, held)
        settings = replace(arm, seed=cell.seed)
        tuned = _train(self.policy, self.loaded_tokenizer, train, settings, context.scratch)
        tuned.eval()
        after = text_pair_logprobs(tuned, self.loaded_tokenizer, held)
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
            client = TransformersClient(self.policy, self.loaded_tokenizer)
            MagpiePipeline(
                replace(self.data, seed=seed),
                llm=client,
                tokenizer=self.loaded_tokenizer,
                encoder=self.encoder(),
                reward=LikelihoodReward(client) if self.reward is None else self.reward(),
            ).run(folder)
        with (folder / "preferences.jsonl").open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        return usable_pairs(self.loaded_tokenizer, rows, max_length=_MAX_TOKENS)


def _train(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    pairs: Sequence[dict[str, Any]],
    settings: PreferenceSettings | SFTSettings,
    scratch: Path,
) -> Any:
    """DPO on the pairs, or supervised training on the chosen answers; LoRA in both."""
    if isinstance(settings, PreferenceSettings):
        return align_on_pairs(model, tokenizer, pairs, settings, output_dir=scratch / "dpo")
    rows = [{"instruction": p["prompt"][0]["content"], "response": p["chosen"]} for p in pairs]
    return finetune_on_rows(model, tokenizer, rows, settings, output_dir=scratch / "sft")


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
