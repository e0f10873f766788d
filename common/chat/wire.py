"""The OpenAI protocol's messages and answers, to and from ours."""

import base64
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

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
}


def completion_from_chat(response: Any, params: GenerationParams) -> Completion:
    """Reads the first choice of a chat completion."""
    choice = response.choices[0]
    refusal = getattr(choice.message, "refusal", None)
    logprobs = top_logprobs = None
    if params.logprobs is not None and choice.logprobs and choice.logprobs.content:
        content = choice.logprobs.content
        logprobs = tuple(token.logprob for token in content)
        if params.logprobs:
            top_logprobs = tuple(
                {best.token: best.logprob for best in token.top_logprobs} for token in content
            )
    return Completion(
        text=refusal or choice.message.content or "",
        finish_reason="content_filter" if refusal else _finish_reason(choice.finish_reason),
        stop_reason=getattr(choice, "stop_reason", None),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        usage=_usage(response),
    )


def completion_from_text(response: Any, params: GenerationParams) -> Completion:
    """Reads the first choice of a text completion."""
    choice = response.choices[0]
    logprobs = top_logprobs = None
    if params.logprobs is not None and choice.logprobs:
        logprobs = tuple(choice.logprobs.token_logprobs or ())
        if params.logprobs:
            top_logprobs = tuple(dict(best) for best in choice.logprobs.top_logprobs or ())
    return Completion(
        text=choice.text or "",
        finish_reason=_finish_reason(choice.finish_reason),
        stop_reason=getattr(choice, "stop_reason", None),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        usage=_usage(response),
    )


def _finish_reason(given: str | None) -> FinishReason:
    # servers of tools and agents name further reasons; all of them are ends of their own accord
    return _FINISH.get(given or "stop", "stop")


def _usage(response: Any) -> Usage:
    usage = response.usage
    if usage is None:
        return Usage()
    details = getattr(usage, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or 0
    return Usage(usage.prompt_tokens or 0, usage.completion_tokens or 0, cached)


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
