"""The two steps of Magpie: queries out of nothing, then answers (fig. 1 of the paper)."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ritornello.common.chat import ChatClient, Completion, GenerationParams, Prompt
from ritornello.methods.magpie.templates import ChatTemplateParts

# Only the instruction side of a multi-turn conversation sees this.
MULTI_TURN_SYSTEM = (
    "The conversation below has several rounds. In every new round the user reacts to the "
    "assistant's last answer: with a follow-up question, a request to change or extend it, or a "
    "related task."
)
DOMAIN_SYSTEMS: Mapping[str, str] = {
    "math": "You are a tutor who helps users solve mathematical problems step by step.",
    "code": "You are a programming assistant. Users ask you to write, explain and debug code.",
    "translation": "You translate texts between languages for users who say what they need.",
    "chinese": "You are a helpful assistant. The user writes in Chinese.",
}


@dataclass(frozen=True)
class Instruction:
    """A sampled user query.

    Attributes:
        text: the query, stripped.
        finish_reason: "stop" where the model ended the turn itself or a stop string was met,
            "length" where the budget cut it off: such a query is not complete.
        token_ids: generated ids, the ending token included; None from an endpoint.
        index: its number, which with the seed determines it.
        natural_stop: whether the model itself ended the user's turn; true as well where an endpoint
            does not tell its end from a stop string's.
    """

    text: str
    finish_reason: str
    token_ids: tuple[int, ...] | None
    index: int = 0
    natural_stop: bool = False


class MagpieGenerator:
    """Draws user queries from an aligned model by giving it the pre-query template alone.

    Query number i is a function of the model, the template, the settings, the seed and i: how
    many are drawn at a time and in what order changes nothing.

    Args:
        llm: the aligned model; raw-text prompts must be possible.
        parts: its chat template, with the system message that queries shall follow.
        temperature: of step 1, > 0.
        top_p: of step 1.
        max_new_tokens: budget of a query.
        stop_at_newline: end a query at its first line break, as the official script does by
            default: models run on into an answer.
        stop_words: further texts that end a query; a model that leaves out its turn end writes
            the next header's word.
        first_token_temperature: divides the logits of the first token (official "flaming": 1.2).
        banned_first_ids: never the first token (official "de-markdown" for Llama 3.1: 2, 567,
            14711, 827).
        response_parts: template of step 2; by default `parts`.
        response_tokens: budget of an answer.
        seed: of all draws.

    Raises:
        ValueError: a temperature that cannot sample, or both first-token settings at once.
    """

    def __init__(
        self,
        llm: ChatClient,
        parts: ChatTemplateParts,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 2048,
        stop_at_newline: bool = True,
        stop_words: Sequence[str] = ("assistant",),
        first_token_temperature: float | None = None,
        banned_first_ids: Sequence[int] = (),
        response_parts: ChatTemplateParts | None = None,
        response_tokens: int = 2048,
        seed: int = 0,
    ) -> None:
        if not temperature > 0:
            raise ValueError(
                f"temperature must be > 0, got {temperature}: one prompt is sampled many times"
            )
        if first_token_temperature is not None and banned_first_ids:
            raise ValueError("give first_token_temperature or banned_first_ids, not both")
        self.llm = llm
        self.parts = parts
        self.response_parts = response_parts or parts
        self.seed = seed
        self.response_tokens = response_tokens
        self.instruction_params = GenerationParams(
            max_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            stop=(*stop_words, *parts.stop_strings, *(("\n",) if stop_at_newline else ())),
            stop_token_ids=parts.stop_ids,
            seed=seed,
            first_token_temperature=first_token_temperature,
            banned_first_token_ids=tuple(banned_first_ids),
        )

    def instructions(self, n: int, *, first: int = 0) -> list[Instruction]:
        """Draws queries number `first` to `first + n - 1` (step 1).

        Raises:
            ValueError: n < 1.
        """
        if n < 1:
            raise ValueError(f"n must be >= 1, got {n}")
        prompts = [Prompt(text=self.parts.pre_query)] * n
        return self._ask_queries(prompts, range(first, first + n))

    def responses(
        self, instructions: Sequence[str | Instruction], *, greedy: bool = True
    ) -> list[Completion]:
        """Answers queries (step 2): greedy as in the paper, or with the temperature of step 1.

        Args:
            instructions: queries, sampled or written.
            greedy: temperature 0.

        Returns:
            One completion per query, in order.
        """
        texts = [i.text if isinstance(i, Instruction) else i for i in instructions]
        prompts = [Prompt(text=self.response_parts.with_query(text)) for text in texts]
        return self.llm.generate(prompts, self.response_params(greedy=greedy))

    def response_params(self, *, greedy: bool = True) -> GenerationParams:
        """How answers are decoded."""
        step1 = self.instruction_params
        return GenerationParams(
            max_tokens=self.response_tokens,
            temperature=0.0 if greedy else step1.temperature,
            top_p=1.0 if greedy else step1.top_p,
            stop_token_ids=self.response_parts.stop_ids,
            stop=self.response_parts.stop_strings,
            seed=self.seed,
        )

    def multi_turn(self, rows: Sequence[Mapping[str, object]], turns: int = 2) -> list[dict]:
        """Extends rows of {instruction, response} to `turns` rounds.

        The query of each further round is drawn after the rendered history under a system message
        about conversations of several rounds; the answer, greedy, does not see that message, nor
        is it stored. A row whose next query comes out empty or is cut off by the budget ends there.
        Draws are numbered by the row's `index`, or by its place where it has none: with an index, a
        row's conversation does not depend on its company.

        Returns:
            New rows with `instruction_2`, `response_2`, ... added.

        Raises:
            ValueError: turns < 2, or a chat template without system messages.
        """
        if turns < 2:
            raise ValueError(f"turns must be >= 2, got {turns}")
        extended: list[dict[str, Any]] = [dict(row) for row in rows]
        numbers = [int(row.get("index", place)) for place, row in enumerate(extended)]
        going = list(range(len(extended)))
        for turn in range(2, turns + 1):
            histories = {i: conversation(extended[i]) for i in going}
            system = {"role": "system", "content": MULTI_TURN_SYSTEM}
            prompts = [Prompt(text=self.parts.after([system, *histories[i]])) for i in going]
            queries = self._ask_queries(prompts, [numbers[i] for i in going])
            going, queries = _complete(going, queries)
            asked = [
                Prompt(
                    text=self.response_parts.render(
                        [*histories[i], {"role": "user", "content": query.text}]
                    )
                )
                for i, query in zip(going, queries, strict=True)
            ]
            answers = self.llm.generate(asked, self.response_params())
            for i, query, answer in zip(going, queries, answers, strict=True):
                extended[i][f"instruction_{turn}"] = query.text
                extended[i][f"response_{turn}"] = answer.text
        return extended

    def self_test(self, n: int = 8) -> float:
        """Share of n queries that end by themselves; warns when none does (wrong template)."""
        ended = sum(query.natural_stop for query in self.instructions(n))
        warn_if_endless(ended, n, self)
        return ended / n

    def _ask_queries(self, prompts: Sequence[Prompt], numbers: Sequence[int]) -> list[Instruction]:
        numbered = [
            replace(prompt, sample=number) for prompt, number in zip(prompts, numbers, strict=True)
        ]
        completions = self.llm.generate(numbered, self.instruction_params)
        return [self._instruction(c, p.sample) for c, p in zip(completions, numbered, strict=True)]

    def _instruction(self, completion: Completion, index: int) -> Instruction:
        # vLLM's server names no reason where the model's own end token came, others never do
        ends = (None, *self.parts.stop_ids, *self.parts.stop_strings)
        ended = completion.stop_reason in ends
        return Instruction(
            completion.text.strip(),
            completion.finish_reason,
            completion.token_ids,
            index,
            natural_stop=completion.finish_reason == "stop" and ended,
        )


def warn_if_endless(ended: int, drawn: int, generator: MagpieGenerator) -> None:
    """Warns where none of the drawn queries ended by itself: the template is not the model's."""
    if ended == 0:
        warnings.warn(
            f"none of {drawn} sampled queries ended by itself: the pre-query template "
            f"{generator.parts.pre_query!r} does not look like the one {generator.llm.model_id} "
            "was trained with (a missing default system turn is the usual cause)",
            stacklevel=3,
        )


def conversation(row: Mapping[str, object]) -> list[dict[str, str]]:
    """The turns of a row: instruction, response, instruction_2, response_2, ..."""
    turns, suffix, number = [], "", 1
    while f"instruction{suffix}" in row:
        turns.append({"role": "user", "content": str(row[f"instruction{suffix}"])})
        turns.append({"role": "assistant", "content": str(row[f"response{suffix}"])})
        number += 1
        suffix = f"_{number}"
    return turns


def _complete(
    going: Sequence[int], queries: Sequence[Instruction]
) -> tuple[list[int], list[Instruction]]:
    pairs = [
        (i, query)
        for i, query in zip(going, queries, strict=True)
        if query.text and query.finish_reason != "length"
    ]
    return [i for i, _ in pairs], [query for _, query in pairs]
