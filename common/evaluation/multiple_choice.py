"""Zero-shot multiple choice by the likelihood of each answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Question:
    """A context, the texts that may follow it, and which of them is right."""

    context: str
    choices: tuple[str, ...]
    answer: int

    def __post_init__(self) -> None:
        if not 0 <= self.answer < len(self.choices):
            raise ValueError(
                f"answer must be in [0, {len(self.choices)}), got {self.answer} "
                f"for {self.context[:60]!r}"
            )


@dataclass(frozen=True)
class ChoiceScores:
    """Whether each question was answered rightly.

    Attributes:
        accuracy: 1 where the choice of least summed loss is right; (questions,).
        normalised: the same with the loss per token of the choice.
    """

    accuracy: Float[Tensor, " questions"]
    normalised: Float[Tensor, " questions"]


def score_choices(
    model: Callable[..., Any],
    tokenizer: Callable[..., Any],
    questions: Sequence[Question],
    *,
    batch_size: int,
    max_tokens: int,
    device: torch.device | str = "cpu",
) -> ChoiceScores:
    """Ranks the choices of every question by their negative log-likelihood.

    Context and choice are tokenised separately (a BOS of the choice is dropped) and joined; the
    loss runs over the choice alone. Batches follow the questions' order, padded on the left, so the
    choices of one question may fall into two batches: a model that adapts to its batch depends on
    `batch_size`.

    Args:
        model: called with `input_ids` and `attention_mask`; its result has `logits`.
        tokenizer: a transformers tokenizer.
        questions: at least one.
        batch_size: (question, choice) pairs a forward pass.
        max_tokens: longer pairs lose the start of their context.
        device: where the model lies.

    Raises:
        ValueError: there is no question, a context without a token, or a choice that alone exceeds
            `max_tokens`.
    """
    if not questions:
        raise ValueError("questions must hold at least one question")
    pairs = [_tokens(tokenizer, q.context, c, max_tokens) for q in questions for c in q.choices]
    losses, lengths = [], []
    for start in range(0, len(pairs), batch_size):
        batch = pairs[start : start + batch_size]
        losses.append(_choice_losses(model, batch, device))
        lengths += [len(choice) for _, choice in batch]
    summed = torch.cat(losses)
    mean = summed / torch.tensor(lengths)
    counts = [len(q.choices) for q in questions]
    answers = [q.answer for q in questions]
    return ChoiceScores(_right(summed, counts, answers), _right(mean, counts, answers))


def _tokens(
    tokenizer: Callable[..., Any], context: str, choice: str, max_tokens: int
) -> tuple[list[int], list[int]]:
    before = tokenizer(context)["input_ids"]
    if not before:
        raise ValueError("a context must have at least one token, which the choice follows")
    after = tokenizer(choice)["input_ids"]
    if after and after[0] == getattr(tokenizer, "bos_token_id", None):
        after = after[1:]
    if not after or len(after) >= max_tokens:
        raise ValueError(
            f"a choice must have between 1 and max_tokens={max_tokens} - 1 tokens, "
            f"got {len(after)} for {choice[:60]!r}"
        )
    return before[-(max_tokens - len(after)) :], after


@torch.no_grad()
def _choice_losses(
    model: Callable[..., Any],
    batch: list[tuple[list[int], list[int]]],
    device: torch.device | str,
) -> Float[Tensor, " pairs"]:
    ids, mask = _left_padded([before + after for before, after in batch])
    logits = model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
    losses = []
    for row, (_, after) in enumerate(batch):
        # The token at position t is predicted at t - 1.
        predicted = logits[row, -len(after) - 1 : -1].float()
        target = torch.tensor(after, device=predicted.device)
        losses.append(torch.nn.functional.cross_entropy(predicted, target, reduction="sum"))
    return torch.stack(losses).cpu()


def _left_padded(
    rows: list[list[int]],
) -> tuple[Int[Tensor, "rows tokens"], Int[Tensor, "rows tokens"]]:
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, ids.shape[1] - len(row) :] = torch.tensor(row)
        mask[number, ids.shape[1] - len(row) :] = 1
    return ids, mask


def _right(losses: Tensor, counts: list[int], answers: list[int]) -> Float[Tensor, " questions"]:
    chosen = [group.argmin().item() for group in losses.split(counts)]
    return (torch.tensor(chosen) == torch.tensor(answers)).float()
