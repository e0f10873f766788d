"""A student whose long solutions reach the end of its context."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ritornello.common.chat import (
    Completion,
    ContinuationScores,
    GenerationParams,
    Prompt,
    PromptLike,
    TransformersClient,
)
from ritornello.common.chat.protocol import OnCompletion, as_prompt


class ContextBound:
    """A local client whose answers end where the context does, as a server's do.

    Verification asks about whole solutions: a rambling one may leave less room than `max_tokens`,
    or none, for which the answer is empty and has finish reason "length".
    """

    def __init__(self, client: TransformersClient) -> None:
        self._client = client
        self._context: int = client.model.config.max_position_embeddings

    @property
    def model_id(self) -> str:
        """The inner client's."""
        return self._client.model_id

    @property
    def capabilities(self) -> frozenset[str]:
        """The inner client's."""
        return self._client.capabilities

    def generate(
        self,
        prompts: Sequence[PromptLike],
        params: GenerationParams,
        *,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """As `ChatClient.generate`."""
        asked = [as_prompt(prompt) for prompt in prompts]
        completions: dict[int, Completion] = {}

        def finish(index: int, completion: Completion) -> None:
            completions[index] = completion
            if on_completion is not None:
                on_completion(index, completion)

        by_budget: dict[int, list[int]] = defaultdict(list)
        for index, prompt in enumerate(asked):
            by_budget[min(self._room(prompt), params.max_tokens)].append(index)
        for budget, places in by_budget.items():
            if budget < 1:
                for index in places:
                    finish(index, Completion("", finish_reason="length"))
                continue
            self._client.generate(
                [asked[index] for index in places],
                replace(params, max_tokens=budget),
                on_completion=lambda place, answer, places=places: finish(places[place], answer),
            )
        return [completions[index] for index in range(len(asked))]

    def score_continuations(
        self, prompts: Sequence[PromptLike], continuations: Sequence[Sequence[str]]
    ) -> list[ContinuationScores]:
        """The inner client's."""
        return self._client.score_continuations(prompts, continuations)

    def _room(self, prompt: Prompt) -> int:
        text = self._client.render(prompt)
        return self._context - len(self._client.tokenizer(text, add_special_tokens=False).input_ids)
