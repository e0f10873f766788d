"""Clients that answer by a Python function: exact tests, oracles, baselines, failures at will."""

from collections.abc import Callable, Sequence

from ritornello.common.chat.protocol import (
    CapabilityError,
    ChatClient,
    Completion,
    ContinuationScores,
    GenerationParams,
    OnCompletion,
    Prompt,
    PromptLike,
    Usage,
    as_prompt,
    request_seed,
)

Reply = Callable[[Prompt, GenerationParams], str | Completion]
Score = Callable[[Prompt, str], Sequence[float]]


class ScriptedClient:
    """Answers every prompt with `reply(prompt, params)`.

    A string reply is treated as a model's would be: cut before the first stop string, and to
    `max_tokens` words (finish reason "length"). Return a `Completion` to control everything.

    Args:
        reply: the policy.
        score: log-probabilities of the tokens of one continuation; None refuses scoring.
        model_id: name in cache keys and reports.
    """

    capabilities: frozenset[str] = frozenset(
        {"messages", "raw_text", "prefill", "images", "seed", "logprobs", "scores"}
    )

    def __init__(self, reply: Reply, *, score: Score | None = None, model_id: str = "scripted"):
        self.model_id = model_id
        self.calls: list[Prompt] = []
        self._reply = reply
        self._score = score

    def generate(
        self,
        prompts: Sequence[PromptLike],
        params: GenerationParams,
        *,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """As `ChatClient.generate`, by the policy; the prompts are kept in `calls`."""
        completions = []
        for index, prompt in enumerate(map(as_prompt, prompts)):
            self.calls.append(prompt)
            reply = self._reply(prompt, params)
            completion = self._cut(reply, params) if isinstance(reply, str) else reply
            completions.append(completion)
            if on_completion is not None:
                on_completion(index, completion)
        return completions

    def score_continuations(
        self, prompts: Sequence[PromptLike], continuations: Sequence[Sequence[str]]
    ) -> list[ContinuationScores]:
        """As `ChatClient.score_continuations`; `greedy` marks the likeliest."""
        if self._score is None:
            raise CapabilityError(f"{self.model_id} was given no score function")
        scores = []
        for prompt, texts in zip(map(as_prompt, prompts), continuations, strict=True):
            tokens = tuple(tuple(self._score(prompt, text)) for text in texts)
            best = max(map(sum, tokens), default=0.0)
            scores.append(ContinuationScores(tokens, tuple(sum(t) == best for t in tokens)))
        return scores

    def _cut(self, text: str, params: GenerationParams) -> Completion:
        cut, stop = first_stop(text, params.stop)
        words = cut.split(" ")
        length = len(words) > params.max_tokens
        return Completion(
            text=" ".join(words[: params.max_tokens]),
            finish_reason="length" if length else "stop",
            stop_reason=None if length else stop,
            usage=Usage(completion_tokens=min(len(words), params.max_tokens)),
            model=self.model_id,
        )


class Flaky(ScriptedClient):
    """A client some of whose requests fail; which ones depends on what is asked, not on luck.

    Args:
        client: who answers the others.
        failing: share of requests that fail.
        seed: draws them.
    """

    def __init__(self, client: ChatClient, failing: float, *, seed: int = 0) -> None:
        draws = GenerationParams(seed=seed)

        def reply(prompt: Prompt, params: GenerationParams) -> Completion:
            if request_seed(prompt, draws) / 2**63 < failing:
                return Completion("", "error", error="the request failed", attempts=1)
            return client.generate([prompt], params)[0]

        super().__init__(reply, model_id=client.model_id)
        self.capabilities = client.capabilities
        self._client = client

    def score_continuations(
        self, prompts: Sequence[PromptLike], continuations: Sequence[Sequence[str]]
    ) -> list[ContinuationScores]:
        """As the client does; scoring does not fail."""
        return self._client.score_continuations(prompts, continuations)


def first_stop(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """Cuts the text before the stop string that begins earliest; says which one it was."""
    found = [(text.find(string), string) for string in stop if string in text]
    if not found:
        return text, None
    # of two stop strings at one place the longer is named, as it holds the shorter
    position, string = min(found, key=lambda item: (item[0], -len(item[1])))
    return text[:position], string
