"""What it means to talk to a model: prompts, settings, answers, and the two calls every client has.

    client.generate(prompts, params)                  -> one Completion per prompt, in order
    client.score_continuations(prompts, continuations) -> log-probabilities of given texts

Both calls are synchronous and take many prompts at once: a client batches, runs concurrently and
retries inside. A *prompt* is a raw string (sent as it is, no chat template), a sequence of
`Message` (the client applies the model's chat template), or a `Prompt`, which also carries the
beginning of the answer (`prefill`) and the replicate number (`sample`).

**An answer is a function of (client, prompt, params).** The random numbers of a request come from
`params.seed`, the prompt's content and `prompt.sample` alone, never from its place in the list,
the batch size or what else is asked. So `generate([p, p], params)` returns the same text twice; ask
for `replicates(p, n)` to draw n independent answers. Clients that cannot promise this (endpoints)
send the derived seed and are made repeatable by `CachedClient`.

>>> from ritornello.common.chat import GenerationParams, Message, ScriptedClient
>>> client = ScriptedClient(lambda prompt, params: prompt.messages[-1].text.upper())
>>> client.generate([[Message.user("hello")]], GenerationParams(max_tokens=8))[0].text
'HELLO'
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "content_filter", "error"]
Capability = Literal["messages", "raw_text", "prefill", "images", "seed", "logprobs", "scores"]

ROLES: tuple[str, ...] = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Text:
    """A piece of text in a message."""

    text: str


@dataclass(frozen=True)
class Image:
    """An encoded picture (PNG, JPEG, ...) in a message; identified by the hash of its bytes."""

    data: bytes
    media_type: str = "image/png"

    @property
    def sha256(self) -> str:
        """Hash of the encoded bytes, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


Part = Text | Image


@dataclass(frozen=True)
class Message:
    """One turn of a conversation. `content` may be given as a string or as parts."""

    role: Role
    parts: tuple[Part, ...]

    def __init__(self, role: Role, content: str | Sequence[Part]) -> None:
        if role not in ROLES:
            raise ValueError(f"role must be one of {list(ROLES)}, got {role!r}")
        parts = (Text(content),) if isinstance(content, str) else tuple(content)
        if not all(isinstance(part, Text | Image) for part in parts):
            raise ValueError(f"content must be a string or a sequence of Text/Image, got {parts!r}")
        object.__setattr__(self, "role", role)
        object.__setattr__(self, "parts", parts)

    @classmethod
    def system(cls, content: str | Sequence[Part]) -> "Message":
        """A turn that sets the model's role."""
        return cls("system", content)

    @classmethod
    def user(cls, content: str | Sequence[Part]) -> "Message":
        """A turn of the user."""
        return cls("user", content)

    @classmethod
    def assistant(cls, content: str | Sequence[Part]) -> "Message":
        """A turn of the model."""
        return cls("assistant", content)

    @property
    def text(self) -> str:
        """The text parts joined; pictures are left out."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def has_images(self) -> bool:
        """Whether a part is a picture."""
        return any(isinstance(part, Image) for part in self.parts)


@dataclass(frozen=True)
class Prompt:
    """What is asked: either `messages` (templated by the client) or raw `text`, never both.

    Args:
        messages: the conversation so far.
        text: raw text, sent to the model exactly as given; special tokens in it are recognised.
        prefill: how the assistant's answer begins; not part of the completion's text.
        sample: replicate number: different numbers are independent draws of one prompt.
    """

    messages: tuple[Message, ...] = ()
    text: str | None = None
    prefill: str = ""
    sample: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))
        if (self.text is None) == (not self.messages):
            raise ValueError(
                "a prompt needs either text or at least one message, not both; "
                f"got text={self.text!r} and {len(self.messages)} messages"
            )
        if self.sample < 0:
            raise ValueError(f"sample must be >= 0, got {self.sample}")

    def content(self) -> list[object]:
        """The prompt without its replicate number, as JSON; pictures by their hash."""
        messages = [
            [
                message.role,
                [
                    ["text", part.text] if isinstance(part, Text) else ["image", part.sha256]
                    for part in message.parts
                ],
            ]
            for message in self.messages
        ]
        return [self.text, messages, self.prefill]


PromptLike = Prompt | str | Sequence[Message]


def as_prompt(prompt: PromptLike) -> Prompt:
    """Brings the three ways of writing a prompt to one."""
    if isinstance(prompt, Prompt):
        return prompt
    if isinstance(prompt, str):
        return Prompt(text=prompt)
    return Prompt(messages=tuple(prompt))


def replicates(prompt: PromptLike, n: int, *, first: int = 0) -> list[Prompt]:
    """n independent draws of one prompt, numbered first, first + 1, ..."""
    if n < 1:
        raise ValueError(f"n must be >= 1, got {n}")
    return [replace(as_prompt(prompt), sample=first + index) for index in range(n)]


@dataclass(frozen=True)
class GenerationParams:
    """How to decode. The defaults are greedy decoding of at most 256 tokens.

    Args:
        max_tokens: most tokens to generate, >= 1.
        temperature: 0 is greedy; sampling divides the logits by it.
        top_p: smallest set of tokens whose probability reaches top_p, in (0, 1].
        top_k: the k most probable tokens; 0 is no limit.
        stop: strings that end the answer; the text is cut before the first of them.
        stop_token_ids: further token ids that end it (local clients and vLLM only).
        seed: base seed; see `request_seed`.
        logprobs: None for none; 0 for the log-probability of each generated token under the model
            (before temperature and truncation); k > 0 for that and the k most probable
            alternatives.
        skip_special_tokens: leave special tokens out of the decoded text.
        first_token_temperature: divides the logits of the first token, besides `temperature`
            (local clients only).
        banned_first_token_ids: never sampled as first token (local clients only).
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0
    logprobs: int | None = None
    skip_special_tokens: bool = True
    first_token_temperature: float | None = None
    banned_first_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            raise ValueError(f"stop must be a sequence of strings, got the string {self.stop!r}")
        for name in ("stop", "stop_token_ids", "banned_first_token_ids"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {self.max_tokens}")
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ValueError(f"temperature must be finite and >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0 (0: no limit), got {self.top_k}")
        if "" in self.stop:
            raise ValueError("stop must not hold an empty string")
        if self.logprobs is not None and self.logprobs < 0:
            raise ValueError(f"logprobs must be None or >= 0, got {self.logprobs}")
        if self.first_token_temperature is not None and not self.first_token_temperature > 0:
            raise ValueError(
                f"first_token_temperature must be > 0, got {self.first_token_temperature}"
            )


def request_seed(prompt: Prompt, params: GenerationParams) -> int:
    """The seed of one request: 63 bits of hash(params.seed, prompt content, replicate number)."""
    content = json.dumps([params.seed, prompt.content(), prompt.sample], ensure_ascii=True)
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest()) >> 1


@dataclass(frozen=True)
class Usage:
    """Tokens of one request; `cached_tokens` of the prompt were not computed for it alone."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class Completion:
    """One answer.

    Args:
        text: decoded answer, without prefill and without the stop string.
        finish_reason: "stop" (the model ended, or a stop string was met), "length" (the budget
            ran out), "content_filter" (refused by the server) or "error" (`error` says why).
        token_ids: generated ids, an ending token included; None where a server hides them. After a
            stop string they may reach beyond `text`.
        stop_reason: the stop string or token id that ended it, where known.
        logprobs: log-probability of each generated token, natural log.
        top_logprobs: per token the most probable alternatives, token text -> log-probability.
        attempts: how often the request was sent; 0 when it came from a cache.
    """

    text: str
    finish_reason: FinishReason = "stop"
    token_ids: tuple[int, ...] | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[Mapping[str, float], ...] | None = None
    usage: Usage = Usage()
    model: str = ""
    latency_seconds: float = 0.0
    attempts: int = 1
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether there is an answer, be it cut off or refused."""
        return self.finish_reason != "error"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        # the fields are flat but for one: a deep copy would cost more than writing the line
        return vars(self) | {"usage": vars(self.usage)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Completion":
        """The inverse of `to_json`."""
        fields = dict(record)
        for name in ("token_ids", "logprobs", "top_logprobs"):
            fields[name] = None if fields.get(name) is None else tuple(fields[name])
        fields["usage"] = Usage(**fields["usage"])
        return cls(**fields)


@dataclass(frozen=True)
class ContinuationScores:
    """Log-probabilities (natural log) of the continuations of one prompt, in the order given.

    `tokens[i]` holds the log-probability of every token of continuation i given the prompt and
    the tokens before it; `greedy[i]` says whether each of them was the most probable token, None
    where the server does not tell.
    """

    tokens: tuple[tuple[float, ...], ...]
    greedy: tuple[bool | None, ...]

    @property
    def total(self) -> tuple[float, ...]:
        """Sum over the tokens: log P(continuation | prompt)."""
        return tuple(math.fsum(values) for values in self.tokens)

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean over the tokens."""
        return tuple(math.fsum(values) / len(values) for values in self.tokens)

    @property
    def best(self) -> int:
        """Index of the most probable continuation (the first one of equals)."""
        total = self.total
        return total.index(max(total))


OnCompletion = Callable[[int, Completion], None]


@runtime_checkable
class ChatClient(Protocol):
    """A model one can ask.

    `model_id` identifies everything that the answers depend on (weights, dtype, template,
    adapter); it is part of every cache key. `capabilities` says what is understood; a request
    beyond them raises `CapabilityError` before anything is sent.
    """

    @property
    def model_id(self) -> str:
        """Everything that the answers depend on besides prompt and parameters."""
        ...

    @property
    def capabilities(self) -> frozenset[str]:
        """What is understood, see `Capability`."""
        ...

    def generate(
        self,
        prompts: Sequence[PromptLike],
        params: GenerationParams,
        *,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """Answers every prompt, in order.

        Args:
            prompts: what is asked; an empty sequence gives an empty list.
            params: how to decode, the same for all.
            on_completion: called with (index, completion) as soon as each answer is known, so that
                a journal loses nothing when the process dies.

        Raises:
            CapabilityError: the client cannot do what is asked.
            EndpointError: the server refuses every request (bad key, unknown model).
            ErrorBudgetExceeded: more requests failed than the client tolerates.
        """
        ...

    def score_continuations(
        self, prompts: Sequence[PromptLike], continuations: Sequence[Sequence[str]]
    ) -> list[ContinuationScores]:
        """Log-probabilities of `continuations[i]` after `prompts[i]`; nothing is generated."""
        ...


def require_capabilities(
    client: ChatClient, prompts: Sequence[Prompt], params: GenerationParams | None = None
) -> None:
    """Raises CapabilityError for the first thing asked that the client does not offer."""
    needed: set[Capability] = set()
    for prompt in prompts:
        needed.add("messages" if prompt.messages else "raw_text")
        if prompt.prefill:
            needed.add("prefill")
        if any(message.has_images for message in prompt.messages):
            needed.add("images")
    if params is None:
        needed.add("scores")
    elif params.logprobs is not None:
        needed.add("logprobs")
    missing = sorted(needed - client.capabilities)
    if missing:
        raise CapabilityError(
            f"{client.model_id} does not offer {missing}; it offers {sorted(client.capabilities)}"
        )


class ChatError(Exception):
    """Base of all errors of talking to a model."""


class CapabilityError(ChatError):
    """The client cannot do what was asked."""


class ContextLengthError(ChatError):
    """The prompt does not fit into the model's context; the message states the lengths."""


class EndpointError(ChatError):
    """The server refuses (401, 403, 404, ...): no retry would help."""


class ErrorBudgetExceeded(ChatError):
    """Too many requests failed for the answers to mean anything."""
