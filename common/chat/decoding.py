"""Decoding a stream of prompts through one batch that is refilled and compacted as it runs.

All prompts share one computation of their common beginning, and those that join together one of
what several of them begin with. A row that has ended leaves the batch at once (the last row takes
its place), and when enough room is free the next prompts are computed together and join the running
rows. Legend: R rows, S new tokens, C cached columns, V vocabulary.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ritornello.common.chat.beginnings import common_prefix, shared_beginnings
from ritornello.common.chat.protocol import FinishReason, GenerationParams
from ritornello.common.chat.row_cache import RowCache
from ritornello.common.chat.sampling import choose


@dataclass(eq=False)
class Row:
    """One request while it is decoded."""

    index: int
    prompt_ids: list[int]
    draws: np.ndarray
    max_tokens: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[dict[int, float]] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def length(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return len(self.prompt_ids) + len(self.token_ids)


@dataclass(frozen=True)
class Prefilled:
    """Prompts that were computed: their cache and the logits (R, V) after the last token."""

    cache: RowCache
    logits: Tensor


class BatchModel:
    """One forward pass over rows that lie anywhere in a `RowCache`.

    Args:
        model: a causal transformers model with full attention in every layer.
    """

    def __init__(self, model) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        names = inspect.signature(model.forward).parameters
        # transformers 5.24 renamed the argument
        self._cache_name = "cache" if "cache" in names else "past_key_values"

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, cache: RowCache, *, keep: int
    ) -> Tensor:
        """Logits (R, keep, V) of the last `keep` of the S tokens `ids` (R, S).

        Args:
            ids: token ids, (R, S).
            positions: positions in the text, (R, S).
            mask: True where a token may look, (R, 1, S, C + S).
            cache: extended in place by S columns.
            keep: how many of the last positions need logits.
        """
        # as scores, which every attention takes; sdpa would convert True and False in every layer
        dtype = self.model.dtype
        scores = torch.full(mask.shape, torch.finfo(dtype).min, dtype=dtype, device=mask.device)
        scores.masked_fill_(mask, 0.0)
        return self.model(
            input_ids=ids,
            attention_mask=scores,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_name: cache},
        ).logits

    def prefill(self, prompts: Sequence[Sequence[int]], prefix: RowCache | None) -> Prefilled:
        """Computes prompts after the shared `prefix` (one row); shared beginnings come first."""
        shared = prefix.columns if prefix is not None else 0
        suffixes = [list(prompt[shared:]) for prompt in prompts]
        beginnings, group = shared_beginnings(suffixes)
        nothing = torch.zeros(1, 0, dtype=torch.bool, device=self.device)
        cache = RowCache(nothing) if prefix is None else prefix
        if any(beginnings):
            cache = cache.select(torch.tensor([0] * len(beginnings), device=self.device))
            self._extend(cache, beginnings)
            suffixes = [ids[len(beginnings[g]) :] for ids, g in zip(suffixes, group, strict=True)]
        cache = cache.select(torch.tensor(group, device=self.device))
        return Prefilled(cache, self._extend(cache, suffixes))

    def _extend(self, cache: RowCache, tokens: Sequence[list[int]]) -> Tensor:
        """Appends tokens to every row in one left-padded batch; logits (R, V) after the last."""
        rows, width = len(tokens), max(map(len, tokens))
        ids = torch.zeros(rows, width, dtype=torch.long)
        valid = torch.zeros(rows, width, dtype=torch.bool)
        for row, known in enumerate(tokens):
            ids[row, width - len(known) :] = torch.tensor(known)
            valid[row, width - len(known) :] = True
        ids, valid = ids.to(self.device), valid.to(self.device)
        before = cache.valid.sum(1, keepdim=True)
        positions = before + (valid.long().cumsum(1) - 1).clamp(min=0)
        mask = causal_mask(cache.extend_valid(valid), width)
        return self.forward(ids, positions, mask, cache, keep=1)[:, -1]

    def prefix(self, prompts: Sequence[list[int]]) -> RowCache | None:
        """The cache of what all prompts begin with; None where sharing would save nothing."""
        # every prompt keeps at least one token, whose logits are wanted
        shared = min(common_prefix(prompts), min(map(len, prompts)) - 1)
        if len(prompts) < 2 or shared < 1:
            return None
        return self.prefill([prompts[0][:shared]], None).cache

    def step(self, rows: Sequence[Row], cache: RowCache) -> Tensor:
        """Logits (R, V) after the newest token of each row."""
        ids = torch.tensor([[row.token_ids[-1]] for row in rows], device=self.device)
        positions = torch.tensor([[row.length - 1] for row in rows], device=self.device)
        valid = cache.extend_valid(cache.valid.new_ones(len(rows), 1))
        return self.forward(ids, positions, valid[:, None, None, :], cache, keep=1)[:, -1]


def causal_mask(valid: Tensor, new: int) -> Tensor:
    """(R, 1, new, C): each of the last `new` columns looks at valid columns up to itself.

    A padding column looks at itself alone, since a softmax over nothing is undefined.
    """
    columns = valid.shape[1]
    here = torch.arange(columns, device=valid.device)
    asking = here[columns - new :, None]
    mask = valid[:, None, :] & (here[None, :] <= asking)[None]
    return (mask | (here[None, :] == asking)[None])[:, None]


class BatchDecoder:
    """Decodes many prompts under one set of parameters.

    Args:
        model: the model.
        params: how to decode.
        end_ids: token ids that end an answer.
        stopped: says of the generated ids whether a stop string occurs in their text; None where
            there are no stop strings.
        max_rows: most rows decoded at a time.
        max_tokens: budget for rows x (prompt + answer) tokens held in the cache.
    """

    def __init__(
        self,
        model: BatchModel,
        params: GenerationParams,
        *,
        end_ids: frozenset[int],
        stopped: Callable[[list[int]], bool] | None,
        max_rows: int,
        max_tokens: int,
    ) -> None:
        self._model = model
        self._params = params
        self._end_ids = end_ids
        self._stopped = stopped
        self._max_rows = max_rows
        self._max_tokens = max_tokens

    @torch.inference_mode()
    def run(self, rows: Sequence[Row], on_finish: Callable[[Row], None]) -> None:
        """Decodes all rows, longest prompt first; calls `on_finish` as each one ends."""
        waiting = sorted(rows, key=lambda row: (len(row.prompt_ids), row.index))
        prefix = self._model.prefix([row.prompt_ids for row in waiting])
        active: list[Row] = []
        cache: RowCache | None = None
        while waiting or active:
            joining = self._next_rows(waiting, active, cache)
            if joining:
                fresh = self._model.prefill([row.prompt_ids for row in joining], prefix)
                self._advance(joining, fresh.logits, fresh.cache, on_finish)
                if not active:
                    active, cache = joining, fresh.cache
                elif joining:
                    assert cache is not None
                    cache.append_rows(fresh.cache)
                    active.extend(joining)
            if active:
                assert cache is not None
                self._advance(active, self._model.step(active, cache), cache, on_finish)

    def _next_rows(
        self, waiting: list[Row], active: list[Row], cache: RowCache | None
    ) -> list[Row]:
        """Takes the rows that join now: none until a quarter of the batch is free."""
        if not waiting:
            return []
        columns = len(waiting[-1].prompt_ids)
        if active and cache is not None:
            columns = max(columns, cache.columns)
        budget = self._max_tokens // (columns + self._params.max_tokens)
        capacity = max(1, min(self._max_rows, budget))
        room = min(capacity - len(active), len(waiting))
        if active and room < min(len(waiting), max(1, capacity // 4)):
            return []
        joining = waiting[len(waiting) - room :]
        del waiting[len(waiting) - room :]
        return joining

    def _advance(
        self, rows: list[Row], logits: Tensor, cache: RowCache, on_finish: Callable[[Row], None]
    ) -> None:
        """Appends one token to every row; rows that end leave the list and the cache."""
        params = self._params
        # rows of one batch are all at their first token, or none of them is
        step = len(rows[0].token_ids)
        draws = [row.draws[len(row.token_ids)] for row in rows] if params.temperature else []
        tokens = choose(logits, draws, params, first=step == 0)
        if params.logprobs is not None:
            self._record_logprobs(rows, logits, tokens)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            row.token_ids.append(token)
            row.finish_reason = self._finish_reason(row, token)
        for place in range(len(rows) - 1, -1, -1):
            row = rows[place]
            if row.finish_reason is not None:
                cache.drop_row(place)
                rows[place] = rows[-1]
                rows.pop()
                on_finish(row)

    def _finish_reason(self, row: Row, token: int) -> FinishReason | None:
        if token in self._end_ids:
            return "stop"
        if self._stopped is not None and self._stopped(row.token_ids):
            return "stop"
        return "length" if len(row.token_ids) >= row.max_tokens else None

    def _record_logprobs(self, rows: list[Row], logits: Tensor, tokens: Tensor) -> None:
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        chosen = logprobs.gather(1, tokens[:, None]).squeeze(1).tolist()
        for row, value in zip(rows, chosen, strict=True):
            row.logprobs.append(value)
        if self._params.logprobs:
            values, ids = logprobs.topk(self._params.logprobs, dim=-1)
            for row, best, names in zip(rows, values.tolist(), ids.tolist(), strict=True):
                row.alternatives.append(dict(zip(names, best, strict=True)))
