"""A transformers model in this process as a chat client."""

import hashlib
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ritornello.common.chat.continuations import encode_continuations
from ritornello.common.chat.packing import PackedWeights
from ritornello.common.chat.protocol import (
    Completion,
    ContextLengthError,
    ContinuationScores,
    GenerationParams,
    OnCompletion,
    Prompt,
    PromptLike,
    Usage,
    as_prompt,
    request_seed,
    require_capabilities,
)
from ritornello.common.chat.sampling import uniforms
from ritornello.common.chat.scripted import first_stop

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ritornello.common.chat.decoding import Row
    from ritornello.common.chat.scoring import ScoreRequest

_MASKED_ATTENTION = ("sdpa", "eager")
_UNSUPPORTED_LAYERS = ("linear_attention", "conv", "mamba", "chunked_attention", "hybrid")


class TransformersClient:
    """Batched generation and scoring with a local model.

    Prompts share the computation of their common beginning; rows that end leave the batch at once
    and waiting prompts take their place. At temperature 0 the text equals `model.generate`; when
    sampling, each request draws from its own generator, so batch size and order change nothing
    (up to the rounding of matrix products of different heights).

    Args:
        model: causal language model with full attention, loaded with sdpa or eager attention.
        tokenizer: its tokenizer; without a chat template only raw-text prompts are understood.
        max_batch_rows: most prompts decoded at a time.
        max_batch_tokens: budget for rows x (prompt + answer) tokens held in the cache.
        pack_weights: on a CPU in fp32, keep a second copy of the linear weights in the layout that
            decoding needs (faster by about half; costs the weights' memory once more).
        end_at_context: whether an answer ends where the context does, as a server's (it is empty
            where the prompt leaves no room), instead of raising ContextLengthError.
        model_id: identity in cache keys; by default a hash of name, dtype, chat template and
            weights as they are at the first use.

    Raises:
        ValueError: the model has layers or an attention implementation this cannot batch.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        *,
        max_batch_rows: int = 32,
        max_batch_tokens: int = 32_768,
        pack_weights: bool = True,
        end_at_context: bool = False,
        model_id: str | None = None,
    ) -> None:
        if max_batch_rows < 1 or max_batch_tokens < 1:
            raise ValueError(
                "max_batch_rows and max_batch_tokens must be >= 1, "
                f"got {max_batch_rows} and {max_batch_tokens}"
            )
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.max_batch_rows = max_batch_rows
        self.max_batch_tokens = max_batch_tokens
        self._end_at_context = end_at_context
        self._model_id = model_id
        self._context = _context_length(model.config.get_text_config())
        self._packed = PackedWeights(model) if pack_weights else None
        kinds = {"raw_text", "prefill", "seed", "logprobs", "scores"}
        self.capabilities = frozenset(kinds | ({"messages"} if tokenizer.chat_template else set()))

    @property
    def model_id(self) -> str:
        """As given, or name and hash of dtype, template and weights."""
        if not self._model_id:
            self._model_id = _fingerprint(self.model, self.tokenizer)
        return self._model_id

    @property
    def end_ids(self) -> frozenset[int]:
        """Token ids that end an answer, as `model.generate` would take them."""
        ids: Any = self.model.generation_config.eos_token_id
        ids = self.tokenizer.eos_token_id if ids is None else ids
        return frozenset([] if ids is None else [ids] if isinstance(ids, int) else ids)

    def generate(
        self,
        prompts: Sequence[PromptLike],
        params: GenerationParams,
        *,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """As `ChatClient.generate`, in batches; ContextLengthError where a prompt does not fit."""
        from ritornello.common.chat.decoding import BatchDecoder, BatchModel, Row

        asked = [as_prompt(prompt) for prompt in prompts]
        require_capabilities(self, asked, params)
        encoded = self._encode([self.render(prompt) for prompt in asked])
        self._check_lengths(encoded, None if self._end_at_context else params.max_tokens)
        completions: dict[int, Completion] = {}
        started = time.perf_counter()

        def finish(row: Row) -> None:
            completion = self._complete(row, params, time.perf_counter() - started)
            completions[row.index] = completion
            if on_completion is not None:
                on_completion(row.index, completion)

        rows: list[Row] = []
        for index, (prompt, ids) in enumerate(zip(asked, encoded, strict=True)):
            draws = uniforms(request_seed(prompt, params), params.max_tokens)
            row = Row(index, ids, draws, min(params.max_tokens, self._context - len(ids)))
            if row.max_tokens > 0:
                rows.append(row)
            else:
                row.finish_reason = "length"
                finish(row)
        decoder = BatchDecoder(
            BatchModel(self.model),
            params,
            end_ids=self.end_ids | frozenset(params.stop_token_ids),
            stopped=self._stop_check(params) if params.stop else None,
            max_rows=self.max_batch_rows,
            max_tokens=self.max_batch_tokens,
        )
        if rows:
            with self._packed.lent() if self._packed else nullcontext():
                decoder.run(rows, finish)
        return [completions[index] for index in range(len(asked))]

    def score_continuations(
        self, prompts: Sequence[PromptLike], continuations: Sequence[Sequence[str]]
    ) -> list[ContinuationScores]:
        """As `ChatClient.score_continuations`: each prompt once, then its continuations."""
        from ritornello.common.chat.decoding import BatchModel
        from ritornello.common.chat.scoring import score_requests

        asked = [as_prompt(prompt) for prompt in prompts]
        if len(asked) != len(continuations):
            raise ValueError(
                f"continuations must have one entry per prompt, got {len(continuations)} "
                f"for {len(asked)} prompts"
            )
        require_capabilities(self, asked)
        requests = [
            self._score_request(index, self.render(prompt), options)
            for index, (prompt, options) in enumerate(zip(asked, continuations, strict=True))
        ]
        self._check_lengths(
            [request.prompt_ids for request in requests],
            max((len(ids) for request in requests for ids in request.continuations), default=1),
        )
        scores = [ContinuationScores((), ())] * len(requests)
        wanted = [request for request in requests if request.continuations]
        if wanted:
            with self._packed.lent() if self._packed else nullcontext():
                for index, score in score_requests(
                    BatchModel(self.model),
                    wanted,
                    max_rows=self.max_batch_rows,
                    max_tokens=self.max_batch_tokens,
                ):
                    scores[index] = score
        return scores

    def render(self, prompt: Prompt) -> str:
        """The text the model sees: chat template and prefill, or the raw text."""
        if prompt.text is not None:
            return prompt.text + prompt.prefill
        turns = [{"role": message.role, "content": message.text} for message in prompt.messages]
        rendered = self.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True
        )
        assert isinstance(rendered, str)
        return rendered + prompt.prefill

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids; templates and raw prompts hold their special tokens as text already."""
        if not texts:
            return []
        return self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]

    def _check_lengths(self, encoded: Sequence[Sequence[int]], answer_tokens: int | None) -> None:
        for index, ids in enumerate(encoded):
            if not ids:
                raise ValueError(f"prompt {index} is empty: it needs at least one token")
            if answer_tokens is not None and len(ids) + answer_tokens > self._context:
                raise ContextLengthError(
                    f"prompt {index} has {len(ids)} tokens and up to {answer_tokens} follow, "
                    f"but the context holds {self._context}"
                )

    def _stop_check(self, params: GenerationParams):
        # A stop string of n bytes lies within the last n + 8 tokens, which has room for a few
        # tokens that decode to nothing; only those are decoded again after each token.
        window = max(len(string.encode()) for string in params.stop) + 8

        def stopped(ids: list[int]) -> bool:
            tail = self._decode(ids[-window:], params)
            return first_stop(tail, params.stop)[1] is not None

        return stopped

    def _decode(self, ids: list[int], params: GenerationParams) -> str:
        text = self.tokenizer.decode(
            ids,
            skip_special_tokens=params.skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        assert isinstance(text, str)
        return text

    def _complete(self, row: "Row", params: GenerationParams, seconds: float) -> Completion:
        ends = self.end_ids | set(params.stop_token_ids)
        ended = bool(row.token_ids) and row.token_ids[-1] in ends
        text = self._decode(row.token_ids[:-1] if ended else row.token_ids, params)
        text, stop = first_stop(text, params.stop)
        reason = row.finish_reason if stop is None else "stop"
        assert reason is not None
        alternatives = tuple(self._named(best) for best in row.alternatives)
        return Completion(
            text=text,
            finish_reason=reason,
            token_ids=tuple(row.token_ids),
            stop_reason=stop if stop is not None else row.token_ids[-1] if ended else None,
            logprobs=None if params.logprobs is None else tuple(row.logprobs),
            top_logprobs=alternatives if params.logprobs else None,
            usage=Usage(len(row.prompt_ids), len(row.token_ids)),
            model=self.model_id,
            latency_seconds=seconds,
        )

    def _named(self, best: dict[int, float]) -> dict[str, float]:
        """Token text -> log-probability; of tokens with equal text the most probable."""
        named: dict[str, float] = {}
        for token, value in best.items():
            named.setdefault(str(self.tokenizer.decode([token])), value)
        return named

    def _score_request(self, index: int, context: str, options: Sequence[str]) -> "ScoreRequest":
        from ritornello.common.chat.scoring import ScoreRequest

        encoded = encode_continuations(self._encode, context, options, index=index)
        return ScoreRequest(index, *encoded)


def _context_length(config) -> int:
    """Most tokens a row may hold: the model's positions, or its attention window if smaller."""
    unsupported = sorted(
        {kind for kind in getattr(config, "layer_types", None) or () if kind in _UNSUPPORTED_LAYERS}
    )
    if unsupported:
        raise ValueError(f"model has layers {unsupported}; only attention layers can be batched")
    if config._attn_implementation not in _MASKED_ATTENTION:
        raise ValueError(
            f"attn_implementation must be one of {list(_MASKED_ATTENTION)} when the model is "
            f"loaded, got {config._attn_implementation!r}"
        )
    window = getattr(config, "sliding_window", None)
    return min(config.max_position_embeddings, window or config.max_position_embeddings)


def _fingerprint(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> str:
    """Name and a hash of dtype, chat template, and a sample and the sum of every weight."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(str(tokenizer.chat_template).encode())
    for name, weight in sorted(model.state_dict().items()):
        flat = weight.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // 64)][:64].float().tolist()
        total = flat.float().sum().item()
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype} {sample} {total}".encode())
    name = (model.config.name_or_path or "").rstrip("/").rpartition("/")[2] or type(model).__name__
    return f"{name}:{digest.hexdigest()}"
