"""One batch of requests to an OpenAI-compatible server: sending, retrying, reading."""

import asyncio
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ritornello.common.chat.continuations import split_blanks
from ritornello.common.chat.pacing import AdaptiveLimit, RateLimit, retry_after_seconds
from ritornello.common.chat.protocol import (
    CapabilityError,
    Completion,
    ContextLengthError,
    ContinuationScores,
    EndpointError,
    FinishReason,
    GenerationParams,
    Prompt,
)
from ritornello.common.chat.wire import completion_from_chat, completion_from_text, wire_messages

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_RETRIED_STATUS = frozenset({408, 409, 425, 429})
_CONTEXT = re.compile(r"context.{0,12}(length|window|size)|maximum model length", re.I)
_TOLD = 500  # characters of a server's words that an error repeats


@dataclass(frozen=True)
class RetryPolicy:
    """Full-jitter exponential waits between tries; what the server asks for (Retry-After) wins.

    Args:
        attempts: most tries of one request.
        base_seconds: upper end of the first wait; doubles with every try.
        cap_seconds: longest wait of our own.
        total_seconds: no further try after this long.
    """

    attempts: int = 8
    base_seconds: float = 1.0
    cap_seconds: float = 60.0
    total_seconds: float = 900.0


class EndpointSession:
    """One batch of requests over one connection pool."""

    def __init__(
        self,
        sdk: "AsyncOpenAI",
        *,
        model: str,
        limit: AdaptiveLimit,
        policy: RetryPolicy,
        requests_per_minute: float | None,
        tokens_per_minute: float | None,
    ) -> None:
        self._sdk = sdk
        self._model = model
        self._limit = limit
        self._policy = policy
        self._requests = RateLimit(requests_per_minute)
        self._tokens = RateLimit(tokens_per_minute)

    async def complete(
        self, prompt: Prompt, params: GenerationParams, body: dict[str, object]
    ) -> Completion:
        """One completion; a request that failed for good has finish reason "error"."""
        started = time.perf_counter()
        if prompt.text is not None:
            size = len(prompt.text)
            body = body | {"prompt": prompt.text + prompt.prefill}
            if params.logprobs is not None:
                body |= {"logprobs": params.logprobs}
            send, read = self._sdk.completions.create, completion_from_text
        else:
            size = sum(len(message.text) for message in prompt.messages)
            body = body | {"messages": wire_messages(prompt)}
            if params.logprobs is not None:
                body |= {"logprobs": True, "top_logprobs": params.logprobs}
            send, read = self._sdk.chat.completions.create, completion_from_chat
        try:
            response, attempts = await self._send(send, body, size / 4 + params.max_tokens)
            completion = read(response, params)
        except _GaveUp as failure:
            attempts = failure.attempts
            completion = Completion("", finish_reason=failure.reason, error=str(failure))
        if params.logprobs is not None and completion.text and not completion.logprobs:
            raise CapabilityError(
                f"{self._model} answered {completion.text[:40]!r} without the log-probabilities "
                "that were asked for"
            )
        return replace(
            completion,
            model=self._model,
            attempts=attempts,
            latency_seconds=time.perf_counter() - started,
        )

    async def echo_scores(
        self, context: str, options: Sequence[str], *, index: int
    ) -> ContinuationScores:
        """Scores texts after `context`, prompt number `index`, by a completion that echoes."""
        tokens, greedy = [], []
        start = len(split_blanks(context, index)[0])
        for option in options:
            body = {
                "model": self._model,
                "prompt": context + option,
                "max_tokens": 0,
                "echo": True,
                "logprobs": 1,
            }
            try:
                response, _ = await self._send(self._sdk.completions.create, body, len(context) / 4)
            except _GaveUp as failure:
                raise EndpointError(f"{self._model} scored no {option!r}: {failure}") from failure
            echoed = response.choices[0].logprobs
            if not (getattr(echoed, "text_offset", None) and echoed.token_logprobs):
                raise CapabilityError(
                    f"{self._model} does not echo the log-probabilities of a prompt: its answer to "
                    f"`echo` holds {echoed!r:.80}"
                )
            # some servers take max_tokens=0 for no limit and write on behind the text
            first, end = (
                sum(offset < place for offset in echoed.text_offset)
                for place in (start, len(context + option))
            )
            values = tuple(echoed.token_logprobs[first:end])
            if not values:
                raise CapabilityError(
                    f"{self._model} joins the continuation {option!r} to the end of the prompt: "
                    "it has no token of its own to score"
                )
            if None in values:
                raise CapabilityError(
                    f"{self._model} echoed no log-probability for a token of {option!r}"
                )
            tokens.append(values)
            greedy.append(_all_most_probable(values, (echoed.top_logprobs or [])[first:end]))
        return ContinuationScores(tuple(tokens), tuple(greedy))

    async def first_token_scores(
        self, prompt: Prompt, params: GenerationParams, body: dict, options: Sequence[str]
    ) -> ContinuationScores:
        """Scores single-token options by the alternatives to the answer's first token."""
        completion = await self.complete(prompt, params, body)
        if completion.error:
            raise EndpointError(f"{self._model} scored nothing: {completion.error}")
        if not completion.top_logprobs:
            raise CapabilityError(f"{self._model} returned no top_logprobs")
        likely = completion.top_logprobs[0]
        if missing := [option for option in options if option not in likely]:
            raise CapabilityError(
                f"continuations {missing} are not among the {len(likely)} most probable first "
                f"tokens that {self._model} reports; use a raw-text prompt and an endpoint "
                "that echoes log-probabilities"
            )
        tokens = tuple((likely[option],) for option in options)
        top = max(likely, key=likely.__getitem__)
        return ContinuationScores(tokens, tuple(option == top for option in options))

    async def _send(self, create: Callable, body: dict, tokens: float) -> tuple[Any, int]:
        """One request with retries; returns the response and the number of tries."""
        started = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            await self._requests.spend(1)
            await self._tokens.spend(tokens)
            try:
                async with self._limit.slot():
                    return await self._once(create, body), attempt
            except Exception as error:
                wait = self._wait(attempt, error)
                late = time.monotonic() - started + wait > self._policy.total_seconds
                if late or attempt >= self._policy.attempts or not _is_transient(error):
                    raise _explain(error, self._model, attempt) from error
            await asyncio.sleep(wait)

    def _wait(self, attempt: int, error: Exception) -> float:
        """Seconds before the next try: what the server asks for, else a random part of the cap."""
        response = getattr(error, "response", None)
        asked = retry_after_seconds(response.headers) if response is not None else None
        if asked is not None:
            return asked
        policy = self._policy
        doubled = policy.base_seconds * 2.0 ** min(attempt - 1, 100)
        return random.uniform(0, min(policy.cap_seconds, doubled))

    async def _once(self, create: Callable, body: dict) -> Any:
        try:
            response = await create(**body)
            _require_answer(response, body)
        except Exception as error:
            if getattr(error, "status_code", None) == 429:
                self._limit.throttled()
            raise
        self._limit.succeeded()
        return response


def _all_most_probable(
    values: Sequence[float], alternatives: Sequence[Mapping[str, float] | None]
) -> bool | None:
    """Whether no alternative is likelier at any token; None without alternatives."""
    if len(alternatives) != len(values) or not all(alternatives):
        return None
    tops = [max(best.values()) for best in alternatives if best]
    return all(value >= top for value, top in zip(values, tops, strict=True))


class UnreadableBody(Exception):
    """The server answered 200 with something that is no completion."""

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


def _require_answer(response: Any, body: Mapping[str, object]) -> None:
    """Raises UnreadableBody where there is no completion; routers name their fault in there."""
    choice = next(iter(getattr(response, "choices", None) or ()), None)
    if getattr(choice, "text" if "prompt" in body else "message", None) is None:
        fault = getattr(response, "error", None)
        code = fault.get("code") if isinstance(fault, Mapping) else None
        told = f"no answer in the body: {fault or response!s:.300}"
        raise UnreadableBody(told, code if isinstance(code, int) else 502)


class _GaveUp(Exception):
    """A request failed for good, but others may succeed."""

    def __init__(self, message: str, attempts: int, reason: FinishReason = "error") -> None:
        super().__init__(message)
        self.attempts = attempts
        self.reason: FinishReason = reason


def _is_transient(error: BaseException) -> bool:
    import openai

    if isinstance(error, openai.APIStatusError | UnreadableBody):
        return error.status_code in _RETRIED_STATUS or error.status_code >= 500
    # connection errors cover time-outs, resets and bodies cut short; ValueError is broken JSON
    return isinstance(error, openai.APIConnectionError | openai.APIResponseValidationError) or type(
        error
    ).__module__.startswith(("httpx", "httpcore", "json"))


def _explain(error: Exception, model_id: str, attempts: int) -> Exception:
    """The exception to raise for a request that will not be tried again."""
    import openai

    # the SDK's message holds one field of the body, and nothing of a body that lacks it
    body = getattr(error, "body", None)
    told = (
        str(error) if isinstance(body, Mapping) and "message" in body else f"{error} {body or ''}"
    )
    text = f"{type(error).__name__}: {told[:_TOLD]}"
    if _is_transient(error):
        return _GaveUp(f"{text} (after {attempts} tries)", attempts)
    if not isinstance(error, openai.APIStatusError | UnreadableBody):
        return error
    if error.status_code in (400, 413, 422):
        if _CONTEXT.search(f"{told} {body}"):
            return ContextLengthError(f"{model_id}: {told[:_TOLD]}")
        if "content_filter" in f"{told} {body}".lower():
            return _GaveUp(text, attempts, "content_filter")
    hint = ""
    if error.status_code in (401, 403):
        hint = " (the key is read from the environment variable that api_key_env names)"
    return EndpointError(f"{model_id} answered {error.status_code}: {told[:_TOLD]}{hint}")
