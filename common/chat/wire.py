"""The OpenAI protocol's messages and answers, to and from ours."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ritornello.common.chat.protocol import (
    Completion,
    FinishReason,
    GenerationParams,
    Message,
    Prompt,
    Text,
    Usage,
)
from ritornello.common.chat.scripted import first_stop

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "abort": "error",
    "error": "error",
}


def completion_from_chat(response: Any, params: GenerationParams) -> Completion:
    """Reads the first choice of a chat completion."""
    choice = response.choices[0]
    refusal = getattr(choice.message, "refusal", None)
    completion = _completion(response, refusal or _plain_text(choice.message.content), params)
    return replace(completion, finish_reason="content_filter") if refusal else completion


def completion_from_text(response: Any, params: GenerationParams) -> Completion:
    """Reads the first choice of a text completion."""
    return _completion(response, response.choices[0].text or "", params)


def _completion(response: Any, text: str, params: GenerationParams) -> Completion:
    """What both kinds of answer share; `text` is cut where the server left the stop string in."""
    choice = response.choices[0]
    text, stop = first_stop(text, params.stop)
    given = getattr(choice, "finish_reason", None)
    # servers of tools and agents name further reasons; all of them are ends of their own accord
    reason = "stop" if stop is not None else _FINISH.get(given or "stop", "stop")
    logprobs = top_logprobs = None
    if params.logprobs is not None:
        logprobs, top_logprobs = _logprobs(getattr(choice, "logprobs", None))
    return Completion(
        text=text,
        finish_reason=reason,
        stop_reason=getattr(choice, "stop_reason", None) if stop is None else stop,
        logprobs=logprobs,
        top_logprobs=top_logprobs if params.logprobs else None,
        usage=_usage(response),
        error=f"the server ended the answer by {given!r}" if reason == "error" else None,
    )


def _plain_text(content: object) -> str:
    """The text of an answer; some servers send it in parts, with a model's thoughts among them."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    parts = (part for part in content if isinstance(part, Mapping) and part.get("type") == "text")
    return "".join(part["text"] for part in parts)


_Logprobs = tuple[tuple[float, ...] | None, tuple[dict[str, float], ...] | None]


def _logprobs(given: Any) -> _Logprobs:
    """Each token's log-probability and its alternatives, None where the server hides them.

    llama.cpp answers text completions in the form of chat completions.
    """
    if content := getattr(given, "content", None):
        tokens = [token if isinstance(token, Mapping) else token.to_dict() for token in content]
        values: tuple[Any, ...] = tuple(token["logprob"] for token in tokens)
        best = tuple(_named(token.get("top_logprobs") or ()) for token in tokens)
    else:
        values = tuple(getattr(given, "token_logprobs", None) or (None,))
        best = tuple(dict(named or {}) for named in getattr(given, "top_logprobs", None) or ())
    return (None, None) if None in values else (values, best if any(best) else None)


def _named(alternatives: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Token text -> log-probability; of tokens with equal text the most probable."""
    named: dict[str, float] = {}
    for token in alternatives:
        named[token["token"]] = max(token["logprob"], named.get(token["token"], -math.inf))
    return named


def _usage(response: Any) -> Usage:
    usage = getattr(response, "usage", None)
    details = getattr(usage, "prompt_tokens_details", None)
    return Usage(
        prompt_tokens=getattr(usage, "prompt_tokens", None) or 0,
        completion_tokens=getattr(usage, "completion_tokens", None) or 0,
        cached_tokens=getattr(details, "cached_tokens", None) or 0,
    )


def wire_messages(prompt: Prompt) -> list[dict[str, object]]:
    """The `messages` of a request; a prefill is a last assistant message to be continued."""
    messages = [{"role": m.role, "content": _wire_content(m)} for m in prompt.messages]
    if prompt.prefill:
        messages.append({"role": "assistant", "content": prompt.prefill})
    return messages


def _wire_content(message: Message) -> str | list[dict[str, object]]:
    if not message.has_images:
        return message.text
    parts: list[dict[str, object]] = []
    for part in message.parts:
        if isinstance(part, Text):
            parts.append({"type": "text", "text": part.text})
        else:
            url = f"data:{part.media_type};base64,{base64.b64encode(part.data).decode()}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts
