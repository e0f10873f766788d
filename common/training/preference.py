"""Direct preference optimisation with the prompt that both completions share computed once.

trl's default step runs policy and reference over prompt+chosen and prompt+rejected: four passes
that each repeat the prompt. Here a pair is one row, `[padding, prompt, chosen, rejected]`, whose
mask hides the chosen tokens from the rejected ones and whose positions restart after the prompt,
the reference is computed once before training, and the language-model head sees completion
positions only. The loss is the same. `preference_trainer` runs it inside trl's `DPOTrainer`.

Shape legend: pairs; tokens = longest prompt + longest chosen + longest rejected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ritornello.common.training.scored_head import tiled_logprobs
from ritornello.common.training.trl_training import (
    TextPrompt,
    TrainingSettings,
    tokenize_completion,
    tokenize_prompt,
    with_padding,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class PreferenceSettings(TrainingSettings):
    """`TrainingSettings` and what the preference loss needs.

    Args:
        beta: strength of the pull to the reference, > 0.
        nll_weight: weight of the chosen completion's mean negative log-likelihood per token.
        replay_weight: weight of the mean negative log-likelihood of `replay` rows.
        replay_batch_size: replay rows per forward pass.
        length_normalize: divide the log-probabilities by the completion's length.

    Raises:
        ValueError: `beta` <= 0 or a negative weight; see also `TrainingSettings`.
    """

    learning_rate: float = 1e-6
    batch_size: int = 32
    warmup_ratio: float = 0.05
    beta: float = 0.1
    nll_weight: float = 0.0
    replay_weight: float = 0.0
    replay_batch_size: int = 32
    length_normalize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.beta > 0:
            raise ValueError(f"beta must be > 0, got {self.beta}")
        for name in ("nll_weight", "replay_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class PairBatch:
    """One row per pair; see the module's first paragraph for the layout."""

    input_ids: Int[Tensor, "pairs tokens"]
    position_ids: Int[Tensor, "pairs tokens"]
    attention_mask: Bool[Tensor, "pairs 1 tokens tokens"]
    chosen_ids: Int[Tensor, "pairs chosen"]
    rejected_ids: Int[Tensor, "pairs rejected"]
    chosen_mask: Bool[Tensor, "pairs chosen"]
    rejected_mask: Bool[Tensor, "pairs rejected"]


def tokenize_pair(
    tokenizer: "PreTrainedTokenizerBase",
    prompt: TextPrompt,
    chosen: str,
    rejected: str,
    *,
    max_length: int,
) -> dict[str, list[int]]:
    """Token ids of a pair; prompt and completions are tokenised apart, so nothing merges across.

    Args:
        tokenizer: its end-of-sequence token closes both completions.
        prompt: text, or messages for the chat template; a last assistant message is a beginning
            that the completion continues.
        chosen: preferred completion.
        rejected: the other one.
        max_length: most tokens of prompt + completion.

    Raises:
        ValueError: empty or identical completions, an empty prompt, or a pair that is too long.
    """
    if chosen == rejected and chosen.strip():
        raise ValueError(f"chosen and rejected must differ, both are {chosen!r}")
    ids = {"prompt_ids": tokenize_prompt(tokenizer, prompt)}
    for name, text in (("chosen", chosen), ("rejected", rejected)):
        ids[f"{name}_ids"] = tokenize_completion(
            tokenizer, text, prompt_tokens=len(ids["prompt_ids"]), max_length=max_length, name=name
        )
    return ids


def pad_rows(
    rows: Sequence[Sequence[int]], value: int, *, left: bool = False
) -> tuple[Int[Tensor, "rows tokens"], Bool[Tensor, "rows tokens"]]:
    """Rows of unequal length as one tensor, and the mask of their own tokens."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), value)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for index, row in enumerate(rows):
        where = slice(width - len(row), width) if left else slice(0, len(row))
        ids[index, where] = torch.tensor(row)
        mask[index, where] = True
    return ids, mask


def collate_pairs(pairs: Sequence[Mapping[str, Sequence[int]]], pad_token_id: int) -> PairBatch:
    """Lays pairs of token ids out as rows `[padding, prompt, chosen, rejected]`."""
    prompt, prompt_mask = pad_rows([pair["prompt_ids"] for pair in pairs], pad_token_id, left=True)
    chosen, chosen_mask = pad_rows([pair["chosen_ids"] for pair in pairs], pad_token_id)
    rejected, rejected_mask = pad_rows([pair["rejected_ids"] for pair in pairs], pad_token_id)
    sizes = (prompt.shape[1], chosen.shape[1], rejected.shape[1])
    branch = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))
    place = torch.arange(len(branch))
    # A token sees earlier tokens of the prompt and of its own branch.
    visible = (place[:, None] >= place) & ((branch == 0) | (branch[:, None] == branch))
    valid = torch.cat([prompt_mask, chosen_mask, rejected_mask], dim=1)
    # Padding sees itself: a row without any visible token would be NaN after the softmax.
    attention = (visible & valid[:, None, :]) | torch.eye(len(branch), dtype=torch.bool)
    lengths = prompt_mask.sum(1, keepdim=True)
    positions = torch.cat(
        [
            torch.arange(sizes[0]) - sizes[0] + lengths,
            lengths + torch.arange(sizes[1]),
            lengths + torch.arange(sizes[2]),
        ],
        dim=1,
    ).clamp(min=0)
    return PairBatch(
        input_ids=torch.cat([prompt, chosen, rejected], dim=1),
        position_ids=positions,
        attention_mask=attention[:, None],
        chosen_ids=chosen,
        rejected_ids=rejected,
        chosen_mask=chosen_mask,
        rejected_mask=rejected_mask,
    )


def pair_logprobs(
    model: nn.Module, batch: PairBatch
) -> tuple[Float[Tensor, " pairs"], Float[Tensor, " pairs"]]:
    """Summed log-probabilities (natural log) of the chosen and the rejected completions.

    Args:
        model: a transformers causal language model that accepts 4-D masks (sdpa or eager).
        batch: from `collate_pairs`, on the model's device.

    Raises:
        ValueError: another attention, layers other than attention, or a completion that ends beyond
            the model's attention window.
    """
    chosen_size, rejected_size = batch.chosen_ids.shape[1], batch.rejected_ids.shape[1]
    last_prompt = batch.input_ids.shape[1] - chosen_size - rejected_size - 1
    device = batch.input_ids.device
    inputs = {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "attention_mask": _attention(model, batch),
        "logits_to_keep": torch.arange(last_prompt, batch.input_ids.shape[1], device=device),
        "use_cache": False,
    }
    # the last prompt token predicts the first token of both branches
    sources = torch.arange(chosen_size + rejected_size, device=device)
    sources[chosen_size] = 0
    ids = torch.cat([batch.chosen_ids, batch.rejected_ids], dim=1)
    mask = torch.cat([batch.chosen_mask, batch.rejected_mask], dim=1)
    values = tiled_logprobs(model, inputs, sources, ids, mask)
    if values is not None:
        return values[:, :chosen_size].sum(1), values[:, chosen_size:].sum(1)
    logits = model(**inputs).logits
    first = logits[:, :1]
    chosen = torch.cat([first, logits[:, 1:chosen_size]], dim=1)
    rejected = torch.cat([first, logits[:, 1 + chosen_size : -1]], dim=1)
    return (
        _masked_sum(chosen, batch.chosen_ids, batch.chosen_mask),
        _masked_sum(rejected, batch.rejected_ids, batch.rejected_mask),
    )


def _attention(model: nn.Module, batch: PairBatch) -> Tensor:
    """The mask as the model's attention reads it: eager adds it, sdpa takes truth values."""
    config: Any = getattr(getattr(model, "module", model), "config", None)
    kind = getattr(config, "_attn_implementation", "sdpa")
    if kind not in ("sdpa", "eager"):
        raise ValueError(f"attn_implementation must be 'sdpa' or 'eager', got {kind!r}")
    other = {*(getattr(config, "layer_types", None) or ())} - {
        "full_attention",
        "sliding_attention",
    }
    if other:
        raise ValueError(f"model must have attention layers only, got {sorted(other)}")
    window = getattr(config, "sliding_window", None)
    if window and (tokens := int(batch.position_ids.max()) + 1) > window:
        raise ValueError(
            f"prompt + completion must fit into the model's attention window of {window} tokens, "
            f"got {tokens}: lower max_length"
        )
    if kind == "sdpa":
        return batch.attention_mask
    dtype = next(model.parameters()).dtype
    hidden = torch.full_like(batch.attention_mask, torch.finfo(dtype).min, dtype=dtype)
    return hidden.masked_fill_(batch.attention_mask, 0.0)


@torch.inference_mode()
def text_pair_logprobs(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    pairs: Sequence[Mapping[str, Any]],
    *,
    max_length: int = 2048,
    batch_size: int = 8,
) -> list[tuple[float, float]]:
    """Log-probabilities (nats) of the chosen and the rejected completion of every pair.

    Args:
        model: as for `pair_logprobs`.
        tokenizer: its tokenizer.
        pairs: rows with `prompt` (text or messages), `chosen` and `rejected` (text).
        max_length: most tokens of prompt + completion.
        batch_size: pairs per forward pass.

    Raises:
        ValueError: an unusable pair, see `tokenize_pair`.
    """
    rows = [
        tokenize_pair(tokenizer, p["prompt"], p["chosen"], p["rejected"], max_length=max_length)
        for p in pairs
    ]
    found: list[tuple[float, float]] = []
    for start in range(0, len(rows), batch_size):
        batch = collate_pairs(rows[start : start + batch_size], with_padding(tokenizer))
        moved = replace(batch, **{k: v.to(model.device) for k, v in vars(batch).items()})
        chosen, rejected = pair_logprobs(model, moved)
        found += zip(chosen.tolist(), rejected.tolist(), strict=True)
    return found


def _masked_sum(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    # float32: the sum over a long completion in bf16 would lose the difference between two.
    losses = F.cross_entropy(logits.float().flatten(0, 1), ids.flatten(), reduction="none")
    return -(losses.view_as(ids) * mask).sum(1)


def dpo_loss(
    policy_chosen: Float[Tensor, " pairs"],
    policy_rejected: Float[Tensor, " pairs"],
    reference_chosen: Float[Tensor, " pairs"],
    reference_rejected: Float[Tensor, " pairs"],
    *,
    beta: float,
) -> tuple[Float[Tensor, " pairs"], Float[Tensor, " pairs"], Float[Tensor, " pairs"]]:
    """-log sigmoid of the difference of the rewards beta * log(policy / reference).

    Returns:
        Loss, chosen reward and rejected reward of each pair; the rewards carry no gradient.
    """
    chosen = beta * (policy_chosen - reference_chosen)
    rejected = beta * (policy_rejected - reference_rejected)
    return -F.logsigmoid(chosen - rejected), chosen.detach(), rejected.detach()
