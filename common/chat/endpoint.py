"""Any server that speaks the OpenAI protocol as a chat client."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from ritornello.common.chat.pacing import AdaptiveLimit
from ritornello.common.chat.protocol import (
    CapabilityError,
    ChatError,
    Completion,
    ContinuationScores,
    ErrorBudgetExceeded,
    GenerationParams,
    Message,
    OnCompletion,
    Prompt,
    PromptLike,
    as_prompt,
    request_seed,
    require_capabilities,
)
from ritornello.common.chat.session import EndpointSession, RetryPolicy
from ritornello.common.errors import UserError

Answer = TypeVar("Answer")
_TOP_LOGPROBS = 20


class OpenAIClient:
    """Talks to an OpenAI-compatible endpoint: many requests at a time, patiently.

    Messages go to chat completions, raw text to completions. Throttling, server faults, time-outs,
    lost connections and bodies that do not parse are retried; a bad key, an unknown model or a
    malformed request stops the call at once. A request that still fails becomes a completion with
    finish reason "error"; more of them than `max_error_fraction` raise `ErrorBudgetExceeded`.

    Args:
        base_url: e.g. "http://localhost:8000/v1".
        model: the server's model name; with `revision` it is the identity in cache keys.
        api_key_env: environment variable that holds the key; never logged, never hashed.
        timeout_seconds: for one try.
        max_concurrency: ceiling of the adaptive limit.
        requests_per_minute: bound on requests; None for none.
        tokens_per_minute: bound on prompt plus answer tokens (prompt estimated at four characters
            a token); None for none.
        retry: the waits between tries.
        max_error_fraction: share of failed requests that a call tolerates.
        send_seed: pass the request's seed on.
        extra_capabilities: "prefill" where the server continues a final assistant message,
            "scores" where its completions endpoint echoes log-probabilities of the prompt (vLLM
            does; llama-cpp-python 0.3.36 echoes each token's under the next one's distribution).
        extra_body: further fields of every request. They win over this client's own, and None
            leaves a field out that a server does not know: `{"stop_token_ids": None}`, or
            `{"max_tokens": None, "max_completion_tokens": 4096}` for a reasoning model.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        timeout_seconds: float = 120.0,
        max_concurrency: int = 32,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        retry: RetryPolicy | None = None,
        max_error_fraction: float = 0.02,
        send_seed: bool = True,
        extra_capabilities: Sequence[str] = (),
        extra_body: Mapping[str, object] | None = None,
        revision: str = "",
    ) -> None:
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency must be >= 1, got {max_concurrency}")
        if not 0 <= max_error_fraction <= 1:
            raise ValueError(f"max_error_fraction must be in [0, 1], got {max_error_fraction}")
        if unknown := set(extra_capabilities) - {"prefill", "scores"}:
            raise ValueError(
                f"extra_capabilities may hold 'prefill' and 'scores', got {sorted(unknown)}"
            )
        self.model_id = f"{model}@{revision}" if revision else model
        base = {"messages", "raw_text", "images", "seed", "logprobs"}
        self.capabilities = frozenset(base | set(extra_capabilities))
        self.last_limit: float | None = None
        self._base_url = base_url
        self._model = model
        self._api_key_env = api_key_env
        self._timeout = timeout_seconds
        self._max_concurrency = max_concurrency
        self._rates = (requests_per_minute, tokens_per_minute)
        self._retry = retry or RetryPolicy()
        self._max_error_fraction = max_error_fraction
        self._send_seed = send_seed
        self._extra_body = dict(extra_body or {})

    def generate(
        self,
        prompts: Sequence[PromptLike],
        params: GenerationParams,
        *,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """As `ChatClient.generate`, concurrently; first-token settings raise CapabilityError."""
        asked = [as_prompt(prompt) for prompt in prompts]
        require_capabilities(self, asked, params)
        if params.first_token_temperature is not None or params.banned_first_token_ids:
            raise CapabilityError("first-token settings need a local client: no endpoint has them")
        budget = int(self._max_error_fraction * len(asked))
        failed = 0

        def finish(index: int, completion: Completion) -> None:
            nonlocal failed
            if on_completion is not None:
                on_completion(index, completion)
            failed += not completion.ok
            if failed > budget:
                raise ErrorBudgetExceeded(
                    f"{failed} of {len(asked)} requests to {self.model_id} at {self._base_url} "
                    f"failed (tolerated: {budget}); the last one with: {completion.error}"
                )

        def ask(session: EndpointSession, prompt: Prompt) -> Coroutine[Any, Any, Completion]:
            return session.complete(prompt, params, self._body(prompt, params))

        return run_blocking(self._map(asked, ask, finish))

    def score_continuations(
        self, prompts: Sequence[PromptLike], continuations: Sequence[Sequence[str]]
    ) -> list[ContinuationScores]:
        """Raw-text prompts by echo; messages where every continuation is one likely token."""
        asked = [as_prompt(prompt) for prompt in prompts]
        if any(prompt.text is not None for prompt in asked):
            require_capabilities(self, asked)
        if len(asked) != len(continuations):
            raise ValueError(
                f"continuations must have one entry per prompt, got {len(continuations)} "
                f"for {len(asked)} prompts"
            )
        items = [(*pair, index) for index, pair in enumerate(zip(asked, continuations))]

        def ask(session: EndpointSession, item: tuple[Prompt, Sequence[str], int]):
            prompt, options, index = item
            if prompt.text is not None:
                return session.echo_scores(prompt.text + prompt.prefill, options, index=index)
            params = GenerationParams(max_tokens=1, logprobs=_TOP_LOGPROBS)
            return session.first_token_scores(prompt, params, self._body(prompt, params), options)

        return run_blocking(self._map(items, ask, lambda index, scores: None))

    async def _map(self, items: Sequence, ask: Callable, finish: Callable) -> list:
        """Asks for every item with a bounded number of workers; the first fatal error ends all."""
        from openai import AsyncOpenAI

        results: list = [None] * len(items)
        queue = iter(range(len(items)))
        limit = AdaptiveLimit(self._max_concurrency)
        # servers on one's own machine need no key, but the SDK wants one
        key = os.environ.get(self._api_key_env, "none")
        async with AsyncOpenAI(
            base_url=self._base_url, api_key=key, timeout=self._timeout, max_retries=0
        ) as sdk:
            session = EndpointSession(
                sdk,
                model=self._model,
                limit=limit,
                policy=self._retry,
                requests_per_minute=self._rates[0],
                tokens_per_minute=self._rates[1],
            )

            async def work() -> None:
                for index in queue:
                    results[index] = await ask(session, items[index])
                    finish(index, results[index])

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(self._max_concurrency, len(items))):
                        group.create_task(work())
            except* Exception as errors:
                raise errors.exceptions[0] from None
        self.last_limit = limit.limit
        return results

    def _body(self, prompt: Prompt, params: GenerationParams) -> dict[str, object]:
        """The fields of a request that both endpoints share."""
        fields: dict[str, object] = {
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
        }
        if params.stop:
            fields["stop"] = list(params.stop)
        if self._send_seed and params.temperature > 0:
            fields["seed"] = request_seed(prompt, params) % 2**31
        if params.top_k:
            fields["top_k"] = params.top_k
        if params.stop_token_ids:
            fields["stop_token_ids"] = list(params.stop_token_ids)
        if not params.skip_special_tokens:
            fields["skip_special_tokens"] = False
        if prompt.prefill and prompt.messages:
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        fields |= self._extra_body
        sent = {name: value for name, value in fields.items() if value is not None}
        # the SDK knows a part of these by name, and passes on all of them this way
        return {"model": self._model, "extra_body": sent}


def check_server(loader: object) -> None:
    """Asks for one token if an `OpenAIClient` is what `loader`, a `partial`, will make or be given.

    Raises:
        UserError: no server is there, it does not know the model, or it refuses the key.
    """
    if not isinstance(loader, partial):
        return
    if loader.func is not OpenAIClient:
        for argument in loader.keywords.values():
            check_server(argument)
        return
    client = loader(retry=RetryPolicy(attempts=3), max_error_fraction=0.0)
    try:
        client.generate([[Message.user("Hello")]], GenerationParams(max_tokens=1))
    except ChatError as error:
        raise UserError(f"the served model cannot be asked: {error}") from error


def run_blocking(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """Runs a coroutine to its end, also where an event loop is running already (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    outcome: list[Answer] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            outcome.append(asyncio.run(coroutine))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
