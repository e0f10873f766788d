"""A vLLM engine in this process as a chat client."""

from collections.abc import Mapping, Sequence
from typing import Any

from ritornello.common.chat.continuations import encode_continuations
from ritornello.common.chat.protocol import (
    CapabilityError,
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
from ritornello.common.errors import UserError


class VLLMClient:
    """Generates and scores with a `vllm.LLM`, which batches and shares prefixes by itself.

    Args:
        engine: the `vllm.LLM`, e.g. `vllm.LLM(model, enable_prefix_caching=True)`.
        model_id: identity in cache keys.
    """

    capabilities = frozenset({"messages", "raw_text", "prefill", "seed", "logprobs", "scores"})

    def __init__(self, engine: Any, *, model_id: str) -> None:
        self.model_id = model_id
        self._engine = engine
        self._tokenizer = engine.get_tokenizer()

    def generate(
        self,
        prompts: Sequence[PromptLike],
        params: GenerationParams,
        *,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """As `ChatClient.generate`; first-token settings raise CapabilityError.

        A prompt that fills the engine's context raises ContextLengthError; an answer that reaches
        its end has finish reason "length".
        """
        asked = [as_prompt(prompt) for prompt in prompts]
        require_capabilities(self, asked, params)
        if params.first_token_temperature is not None or params.banned_first_token_ids:
            raise CapabilityError("first-token settings need a TransformersClient")
        if not asked:
            return []
        settings = [self._settings(prompt, params) for prompt in asked]
        tokens = self._encode([self._render(prompt) for prompt in asked])
        self._check_lengths(tokens)
        outputs = self._engine.generate(
            [{"prompt_token_ids": ids} for ids in tokens], settings, use_tqdm=False
        )
        completions = [self._completion(output, params) for output in outputs]
        for index, completion in enumerate(completions):
            if on_completion is not None:
                on_completion(index, completion)
        return completions

    def score_continuations(
        self, prompts: Sequence[PromptLike], continuations: Sequence[Sequence[str]]
    ) -> list[ContinuationScores]:
        """As `ChatClient.score_continuations`, by prompt log-probabilities."""
        vllm = require_vllm()
        requests, owners = [], []
        for index, (prompt, options) in enumerate(
            zip(map(as_prompt, prompts), continuations, strict=True)
        ):
            prompt_ids, encoded = encode_continuations(
                self._encode, self._render(prompt), options, index=index
            )
            for ids in encoded:
                requests.append({"prompt_token_ids": prompt_ids + ids})
                owners.append((index, len(prompt_ids)))
        self._check_lengths([request["prompt_token_ids"] for request in requests])
        settings = vllm.SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
        outputs = self._engine.generate(requests, settings, use_tqdm=False)
        tokens: list[list[tuple[float, ...]]] = [[] for _ in prompts]
        greedy: list[list[bool]] = [[] for _ in prompts]
        for (index, start), output in zip(owners, outputs, strict=True):
            pairs = list(zip(output.prompt_token_ids, output.prompt_logprobs, strict=True))[start:]
            tokens[index].append(tuple(best[token].logprob for token, best in pairs))
            greedy[index].append(all(best[token].rank == 1 for token, best in pairs))
        return [
            ContinuationScores(tuple(values), tuple(best))
            for values, best in zip(tokens, greedy, strict=True)
        ]

    def _settings(self, prompt: Prompt, params: GenerationParams):
        return require_vllm().SamplingParams(
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k or -1,
            stop=list(params.stop),
            stop_token_ids=list(params.stop_token_ids),
            seed=request_seed(prompt, params) if params.temperature else None,
            logprobs=params.logprobs,
            skip_special_tokens=params.skip_special_tokens,
        )

    def _render(self, prompt: Prompt) -> str:
        if prompt.text is not None:
            return prompt.text + prompt.prefill
        turns = [{"role": message.role, "content": message.text} for message in prompt.messages]
        return (
            self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            + prompt.prefill
        )

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        return self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]

    def _check_lengths(self, encoded: Sequence[Sequence[int]]) -> None:
        """Before anything is queued: what an engine refuses half way stays in its queue."""
        limit = self._engine.llm_engine.model_config.max_model_len
        for index, ids in enumerate(encoded):
            if not ids:
                raise ValueError(f"prompt {index} is empty: it needs at least one token")
            if len(ids) >= limit:
                raise ContextLengthError(
                    f"prompt {index} has {len(ids)} tokens and at least one follows, but the "
                    f"engine's max_model_len is {limit}"
                )

    def _completion(self, output, params: GenerationParams) -> Completion:
        answer = output.outputs[0]
        if answer.finish_reason not in ("stop", "length"):
            told = f"vLLM ended the request with finish_reason {answer.finish_reason!r}"
            return Completion("", "error", error=told, model=self.model_id)
        reason = answer.stop_reason
        if reason is None and answer.finish_reason == "stop":
            reason = answer.token_ids[-1]  # vLLM leaves it out where the model's own end token came
        logprobs = alternatives = None
        if params.logprobs is not None:
            pairs = list(zip(answer.token_ids, answer.logprobs, strict=True))
            logprobs = tuple(best[token].logprob for token, best in pairs)
            if params.logprobs:
                alternatives = tuple(_likeliest(best, params.logprobs) for _, best in pairs)
        return Completion(
            text=answer.text,
            finish_reason="length" if answer.finish_reason == "length" else "stop",
            token_ids=tuple(answer.token_ids),
            stop_reason=reason,
            logprobs=logprobs,
            top_logprobs=alternatives,
            usage=Usage(
                len(output.prompt_token_ids), len(answer.token_ids), output.num_cached_tokens or 0
            ),
            model=self.model_id,
        )


def _likeliest(entries: Mapping[int, Any], count: int) -> dict[str, float]:
    """Token text -> log-probability of the most probable; vLLM lists the drawn token besides."""
    named: dict[str, float] = {}
    for entry in sorted(entries.values(), key=lambda entry: entry.rank):
        if entry.rank <= count:
            named.setdefault(entry.decoded_token, entry.logprob)
    return named


def load_vllm(model: str, **options: object) -> Any:
    """A vLLM engine with prefix caching.

    Args:
        model: hub id or folder.
        options: further arguments of `vllm.LLM`.

    Raises:
        UserError: vLLM is not installed.
    """
    return require_vllm().LLM(model, enable_prefix_caching=True, **options)


def require_vllm() -> Any:
    """The module, or what to do where it is not installed.

    Raises:
        UserError: vLLM is not installed.
    """
    try:
        import vllm
    except ModuleNotFoundError as error:
        raise UserError(
            "VLLMClient needs vLLM on a machine with a GPU: pip install vllm"
        ) from error
    return vllm
