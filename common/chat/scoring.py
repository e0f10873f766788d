"""Log-probabilities of given continuations: each prompt is computed once, then all its options.

Cost: L + sum of the options' lengths, instead of L for every option. Legend: R rows, T tokens of
the longest continuation, C cached columns, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ritornello.common.chat.decoding import BatchModel
from ritornello.common.chat.protocol import ContinuationScores
from ritornello.common.chat.row_cache import RowCache

# at most so many positions, and so many numbers, of logits over the vocabulary at a time
_LOGIT_ROWS, _LOGITS = 1024, 1024 * 49_152
_SUMMED_ROWS = 32


@dataclass(frozen=True)
class ScoreRequest:
    """One prompt with the continuations to score, as token ids; none of them is empty."""

    index: int
    prompt_ids: list[int]
    continuations: list[list[int]]


@torch.inference_mode()
def score_requests(
    model: BatchModel, requests: Sequence[ScoreRequest], *, max_rows: int, max_tokens: int
) -> Iterator[tuple[int, ContinuationScores]]:
    """Yields (request.index, scores), batch by batch, longest prompts first.

    Of the `max_tokens` that caches may hold, prompts take one half and their copies the other.
    """
    ordered = sorted(requests, key=lambda request: -len(request.prompt_ids))
    prefix = model.prefix([request.prompt_ids for request in ordered])
    start = 0
    while start < len(ordered):
        width = len(ordered[start].prompt_ids)
        size = max(1, min(max_rows, max_tokens // 2 // width))
        batch = ordered[start : start + size]
        start += size
        fresh = model.prefill([request.prompt_ids for request in batch], prefix)
        yield from _score_batch(model, batch, fresh.cache, fresh.logits, max_tokens // 2)


def _score_batch(
    model: BatchModel,
    batch: Sequence[ScoreRequest],
    cache: RowCache,
    first: Tensor,
    max_tokens: int,
) -> Iterator[tuple[int, ContinuationScores]]:
    """Scores of prompts that lie in `cache`; the logits `first` (R, V) predict what follows.

    Every option has its own copy of its prompt's cache: at most `max_tokens` columns at a time.
    """
    options = [(place, ids) for place, request in enumerate(batch) for ids in request.continuations]
    results: list[list[tuple[tuple[float, ...], bool]]] = [[] for _ in batch]
    longest = max(len(ids) for _, ids in options)
    positions = min(_LOGIT_ROWS, _LOGITS // first.shape[1])
    size = max(1, min(positions // longest, max_tokens // (cache.valid.shape[1] + longest)))
    begun = first, _log_total(first), first.argmax(-1)
    for start in range(0, len(options), size):
        chunk = options[start : start + size]
        places = torch.tensor([place for place, _ in chunk], device=first.device)
        lengths = [len(batch[place].prompt_ids) for place, _ in chunk]
        scores = _score_options(model, [ids for _, ids in chunk], lengths, places, cache, begun)
        for (place, _), score in zip(chunk, scores, strict=True):
            results[place].append(score)
    for request, scores in zip(batch, results, strict=True):
        tokens, greedy = zip(*scores, strict=True) if scores else ((), ())
        yield request.index, ContinuationScores(tuple(tokens), tuple(greedy))


def _score_options(
    model: BatchModel,
    options: Sequence[list[int]],
    prompt_lengths: Sequence[int],
    places: Tensor,
    cache: RowCache,
    begun: tuple[Tensor, Tensor, Tensor],
) -> list[tuple[tuple[float, ...], bool]]:
    """Token log-probabilities of right-padded continuations, and whether all were the argmax.

    `begun` holds what predicts the first token of each prompt: logits, their log-sum, argmax.
    """
    rows, width = len(options), max(map(len, options))
    targets = torch.zeros(rows, width, dtype=torch.long)
    for row, ids in enumerate(options):
        targets[row, : len(ids)] = torch.tensor(ids)
    targets = targets.to(model.device)
    logits, total, best = begun
    chosen = logits[places, targets[:, 0]].float() - total[places]
    scored = [(chosen[:, None], (best[places] == targets[:, 0])[:, None])]
    if width > 1:
        inputs = targets[:, :-1]
        rest = _continue(model, inputs, prompt_lengths, cache.select(places))
        scored.append(_token_scores(rest, targets[:, 1:]))
    chosen, greedy = (torch.cat(parts, dim=1).tolist() for parts in zip(*scored, strict=True))
    return [
        (tuple(chosen[row][: len(ids)]), all(greedy[row][: len(ids)]))
        for row, ids in enumerate(options)
    ]


def _token_scores(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (R, T) of targets under logits (R, T, V); whether each is the argmax."""
    total = _log_total(logits.flatten(0, 1)).view(targets.shape)
    chosen = logits.gather(2, targets[..., None]).squeeze(2).float() - total
    return chosen, logits.argmax(-1) == targets


def _log_total(logits: Tensor) -> Tensor:
    """log sum exp (R,) of logits (R, V); a second tensor as large is never held."""
    return torch.cat([part.float().logsumexp(-1) for part in logits.split(_SUMMED_ROWS)])


def _continue(
    model: BatchModel, inputs: Tensor, prompt_lengths: Sequence[int], cache: RowCache
) -> Tensor:
    """Logits (R, T, V) of tokens that follow cached prompts; padding on the right is harmless."""
    rows, width = inputs.shape
    before = cache.valid[:, None, :].expand(rows, width, -1)
    among = torch.ones(width, width, dtype=torch.bool, device=inputs.device).tril()
    mask = torch.cat([before, among.expand(rows, -1, -1)], dim=2)[:, None]
    starts = torch.tensor(prompt_lengths, device=inputs.device)
    positions = starts[:, None] + torch.arange(width, device=inputs.device)
    cache.extend_valid(cache.valid.new_ones(rows, width))
    return model.forward(inputs, positions, mask, cache, keep=width)
