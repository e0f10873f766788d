"""The protocols as tasks: A and C rank options by likelihood, B asks for a list."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from ritornello.common.chat import (
    CapabilityError,
    ChatClient,
    Completion,
    ContinuationScores,
    GenerationParams,
    Message,
    Prompt,
)
from ritornello.common.evaluation import Answer, Query, Sample, Score
from ritornello.methods.k_halu.binary_list import binary, parse_binary_list
from ritornello.methods.k_halu.metrics import set_scores
from ritornello.methods.k_halu.prompts import (
    likelihood_context,
    list_prompt,
    numbered,
    support_prompt,
    words,
    worked_examples,
)
from ritornello.methods.k_halu.selection import is_tied, select_top_k, select_within

Normalise = Literal["char", "byte", "token"]


@dataclass
class KHaluLogLikelihood:
    """Protocol A: the n options of greatest length-normalised log-likelihood, n given away.

    The readings differ in one thing: "official" divides by the characters of an option as it
    stands, "ours" by those of its composed form (NFC), so that decomposed Hangul is not three
    times as long.

    Attributes:
        questions: what to ask.
        normalise: divide by characters (official), UTF-8 bytes, tokens, or not at all (None).
        known_count: take as many options as are right (official); otherwise, protocol C, all
            within `delta` of the best.
        delta: in nats per unit of length; only without `known_count`.
        template: `official` is raw text without a chat template; `chat` puts the context into a
            user turn.
        examples: worked questions put before each (official text has three, unused).
    """

    questions: Sequence[Sample]
    normalise: Normalise | None = "char"
    known_count: bool = True
    delta: float | None = None
    template: Literal["official", "chat"] = "official"
    examples: tuple[Sample, ...] = ()
    name: str = "k_halu_log"

    def __post_init__(self) -> None:
        if self.normalise not in ("char", "byte", "token", None):
            raise ValueError(f"normalise must be char, byte, token or None, got {self.normalise!r}")
        if self.template not in ("official", "chat"):
            raise ValueError(f"template must be official or chat, got {self.template!r}")
        if self.known_count == (self.delta is not None):
            raise ValueError(
                "give delta exactly when known_count is False, "
                f"got known_count={self.known_count} and delta={self.delta}"
            )

    def samples(self) -> Sequence[Sample]:
        """The questions as they were given."""
        return self.questions

    def render(self, sample: Sample) -> Query:
        """The context, and every numbered option as a continuation to be scored."""
        context = worked_examples(self.examples) + likelihood_context(sample)
        if self.template == "chat":
            return Query([Message.user(context)], continuations=tuple(numbered(sample)))
        # White space at the end of a context is scored with the option, as tokenizers join it to
        # what follows: the newline is a constant of all five that weighs more on short options.
        body = context.rstrip()
        joint = context[len(body) :] + " "
        options = tuple(joint + option for option in numbered(sample))
        return Query(Prompt(text=body), continuations=options)

    def parse(self, sample: Sample, response: ContinuationScores) -> Mapping[str, Answer]:
        """The indices of the options picked (from 0), by each of the two readings."""
        totals = response.total
        readings = {}
        for reading in ("ours", "official"):
            lengths = self.lengths(sample, response, composed=reading == "ours")
            if self.delta is not None:
                readings[reading] = Answer(
                    list(select_within(totals, lengths, self.delta)), rule="within"
                )
            else:
                n = len(sample.gold)
                rule = "tie" if is_tied(totals, lengths, n) else "top"
                readings[reading] = Answer(list(select_top_k(totals, lengths, n)), rule=rule)
        return readings

    def lengths(
        self, sample: Sample, response: ContinuationScores, *, composed: bool = True
    ) -> list[float]:
        """What each log-likelihood is divided by, the options' Hangul composed or as it stands."""
        options = numbered(sample)
        if composed:
            options = [unicodedata.normalize("NFC", option) for option in options]
        if self.normalise == "char":
            return [float(len(option)) for option in options]
        if self.normalise == "byte":
            return [float(len(option.encode())) for option in options]
        if self.normalise == "token":
            return [float(len(tokens)) for tokens in response.tokens]
        return [1.0] * len(options)

    def score(self, sample: Sample, answer: Answer) -> Score:
        """1 where the sets are equal; partial credit and mistakes are in its parts."""
        return score_set(sample, answer.value or (), tied=answer.rule == "tie")


@dataclass
class KHaluExactMatch:
    """Protocol B: the model writes five zeros and ones, and all must be right.

    Attributes:
        questions: what to ask.
        parser: whose reading counts as "ours": our parser's, or the official one's, which is
            recorded beside it either way.
        n_examples: worked questions about other documents that stand before each.
        max_tokens: budget of the reply; the harness's default is 256.
        example_lines: how often the example list is shown (official: three times).
        rules: wording of how to answer; ours unless given.
        template: `official` is raw text; `chat` puts the prompt into a user turn.
    """

    questions: Sequence[Sample]
    parser: Literal["ours", "official"] = "ours"
    n_examples: int = 0
    max_tokens: int = 256
    example_lines: int = 3
    rules: str | None = None
    template: Literal["official", "chat"] = "official"
    name: str = "k_halu_em"

    def __post_init__(self) -> None:
        if self.template not in ("official", "chat"):
            raise ValueError(f"template must be official or chat, got {self.template!r}")
        if self.parser not in ("ours", "official"):
            raise ValueError(f"parser must be ours or official, got {self.parser!r}")
        for name, number in (
            ("example_lines", self.example_lines),
            ("n_examples", self.n_examples),
        ):
            if number < 0:
                raise ValueError(f"{name} must be >= 0, got {number}")

    def samples(self) -> Sequence[Sample]:
        """The questions as they were given."""
        return self.questions

    def render(self, sample: Sample) -> Query:
        """The prompt for a list of marks, after `n_examples` questions about other documents."""
        others = (q for q in self.questions if q.cluster != sample.cluster)
        text = "".join(
            f"{self._asked(other)}{list(binary(other.gold, len(other.choices)))}\n\n"
            for other in islice(others, self.n_examples)
        ) + self._asked(sample)
        params = GenerationParams(max_tokens=self.max_tokens, stop=("\n\n",))
        if self.template == "chat":
            return Query([Message.user(text)], params)
        return Query(Prompt(text=text), params)

    def parse(self, sample: Sample, response: Completion) -> Mapping[str, Answer]:
        """The marks as written, one 0 or 1 per option, by each of the two parsers."""
        n = len(sample.choices)
        official = parse_binary_list(response.text, n, compat=True)
        ours = official if self.parser == "official" else parse_binary_list(response.text, n)
        readings = {"ours": ours, "official": official}
        return {
            name: Answer.unparsed() if found is None else Answer(list(found), rule="list")
            for name, found in readings.items()
        }

    def score(self, sample: Sample, answer: Answer) -> Score:
        """1 where exactly the right options are marked; an unread reply picks nothing."""
        marks = answer.value or []
        if len(marks) != len(sample.choices) or not set(marks) <= {0, 1}:
            # an unread reply, or a list that the official parser lets pass: no set of options
            return score_set(sample, ())
        return score_set(sample, [index for index, mark in enumerate(marks) if mark])

    def _asked(self, sample: Sample) -> str:
        return list_prompt(sample, example_lines=self.example_lines, rules=self.rules)


@dataclass
class KHaluSupport:
    """Protocol C per option: is this statement supported, yes or no?

    One sample per option, `group` joining those of a question; ask with `evaluate(task, client,
    block=5)`, so that a question's five prompts share their document. The answer is [1] where the
    option is picked: supported when faithful statements are asked for, unsupported when
    hallucinated ones are.
    """

    questions: Sequence[Sample]
    threshold: float = 0.0
    name: str = "k_halu_support"

    def samples(self) -> list[Sample]:
        """One sample per option; `group` is the question's id."""
        return [
            replace(
                sample,
                id=f"{sample.id}/{choice.key}",
                group=sample.id,
                meta={**sample.meta, "option": index},
            )
            for sample in self.questions
            for index, choice in enumerate(sample.choices)
        ]

    def render(self, sample: Sample) -> Query:
        """Asks whether the option is supported, with yes and no as continuations."""
        label = words(sample)
        prompt = Prompt(text=support_prompt(sample, sample.meta["option"]))
        return Query(prompt, continuations=(label["yes"], label["no"]))

    def parse(self, sample: Sample, response: ContinuationScores) -> Mapping[str, Answer]:
        """[1] where the option is picked, else [0], from log p(yes) - log p(no) in nats."""
        yes, no = response.total
        supported = yes - no > self.threshold
        return {"ours": Answer([int(supported == (sample.labels["polarity"] != "hallucinated"))])}

    def score(self, sample: Sample, answer: Answer) -> Score:
        """1 where a right option is picked or a wrong one is not."""
        return Score(float(bool(answer.value[0]) == (sample.meta["option"] in sample.gold)))


def require_scores(client: ChatClient) -> None:
    """Raises CapabilityError for a client that cannot tell the likelihood of a given text."""
    if "scores" not in client.capabilities:
        raise CapabilityError(
            f"{client.model_id} does not score continuations, which protocols A and C need; use "
            "protocol B (KHaluExactMatch: exact match of a written list)"
        )


def score_set(sample: Sample, picked: Sequence[int], *, tied: bool = False) -> Score:
    """The official score (the sets are equal) with partial credit and mistakes beside it."""
    parts = set_scores(sample.gold, picked)
    return Score(parts["set_match"], parts={**parts, "tied": float(tied)})
