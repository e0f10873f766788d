"""What a benchmark is made of: questions, what is asked of a model, answers, scores."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ritornello.common.chat.protocol import (
    Completion,
    ContinuationScores,
    GenerationParams,
    Part,
    Prompt,
    PromptLike,
    Text,
    as_prompt,
)
from ritornello.common.errors import UserError

Status = Literal["ok", "unparsed", "refused", "truncated", "error"]
Label = str | int | float | bool
Response = Completion | ContinuationScores
_GREEDY = GenerationParams()


class EvaluationError(UserError):
    """Base of what can be wrong with a benchmark."""


class SampleError(EvaluationError):
    """A question is not whole: the message names it."""


class ParserConfigError(EvaluationError):
    """A parser was given options that it cannot tell apart."""


class RunMismatchError(EvaluationError):
    """A journal belongs to another task, model or set of questions."""


@dataclass(frozen=True)
class Choice:
    """One option: its content, never its letter. `key` names the content across permutations."""

    parts: tuple[Part, ...]
    key: str = ""

    @classmethod
    def of(cls, text: str, key: str = "") -> "Choice":
        return cls((Text(text),), key)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True)
class ChoiceTarget:
    """The right options, by 0-based place in `Sample.choices`; several may be right."""

    indices: frozenset[int]

    @classmethod
    def of(cls, *indices: int) -> "ChoiceTarget":
        return cls(frozenset(indices))


@dataclass(frozen=True)
class TextTarget:
    """The texts that count as right."""

    accepted: tuple[str, ...]


Target = ChoiceTarget | TextTarget


@dataclass(frozen=True)
class Sample:
    """One question.

    Attributes:
        id: unique within the task.
        parts: the stimulus and the question, as texts and pictures.
        choices: the options, or none for open questions.
        target: what is right; None where an environment decides, or where nothing is.
        group: joins the permutations of one question (None: the question stands alone).
        cluster: joins questions that share a stimulus (document, dilemma, layout): what is
            resampled for intervals. None: the question is its own cluster.
        labels: scalars by which reports break down (domain, difficulty); written to journals.
        meta: whatever the task needs to render and score; never written.
    """

    id: str
    parts: tuple[Part, ...] = ()
    choices: tuple[Choice, ...] = ()
    target: Target | None = None
    group: str | None = None
    cluster: str | None = None
    labels: Mapping[str, Label] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.id:
            raise SampleError("a sample needs an id")
        if isinstance(self.target, ChoiceTarget):
            outside = [i for i in self.target.indices if not 0 <= i < len(self.choices)]
            if outside or not self.target.indices:
                raise SampleError(
                    f"sample {self.id}: target must name options in [0, {len(self.choices)}), "
                    f"got {sorted(self.target.indices)}"
                )

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def gold(self) -> tuple[int, ...]:
        """The right options in ascending order."""
        if not isinstance(self.target, ChoiceTarget):
            raise SampleError(f"sample {self.id} has no right options")
        return tuple(sorted(self.target.indices))

    def permuted(self, order: Sequence[int], name: str) -> "Sample":
        """The question with slot j showing option order[j]; `name` is added to the id.

        `group` becomes the id of the unpermuted question, `meta["order"]` the order.
        """
        if sorted(order) != list(range(len(self.choices))):
            raise ValueError(
                f"order must be a permutation of 0..{len(self.choices) - 1}, got {list(order)}"
            )
        target = self.target
        if isinstance(target, ChoiceTarget):
            target = ChoiceTarget.of(*(order.index(index) for index in target.indices))
        return replace(
            self,
            id=f"{self.id}/{name}",
            choices=tuple(self.choices[index] for index in order),
            target=target,
            group=self.group or self.id,
            meta={**self.meta, "order": tuple(order)},
        )


@dataclass(frozen=True)
class Query:
    """What one call asks: generate an answer, or score `continuations` when there are any."""

    prompt: PromptLike
    params: GenerationParams = _GREEDY
    continuations: tuple[str, ...] = ()

    @property
    def asked(self) -> Prompt:
        return as_prompt(self.prompt)

    def digest(self) -> str:
        """16 hexadecimal digits that change with anything that is asked."""
        prompt = self.asked
        content = [prompt.content(), prompt.sample, vars(self.params), self.continuations]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Answer:
    """What was read from a response.

    A status other than "ok" comes with the value None: no letter is guessed and nothing is drawn.

    Attributes:
        value: JSON types: a 0-based option, a list of options, a text, an action.
        status: "unparsed", "refused" and "truncated" count as not right; "error" means that
            there was no answer, and is neither right nor wrong.
        rule: the name of the parsing rule that found the value.
    """

    value: Any = None
    status: Status = "ok"
    rule: str = ""

    def __post_init__(self) -> None:
        if (self.status == "ok") == (self.value is None):
            raise ValueError(
                f"an answer has a value exactly when its status is ok, got {self.value!r} "
                f"with status {self.status!r}"
            )

    @classmethod
    def unparsed(cls) -> "Answer":
        return cls(None, "unparsed")


@dataclass(frozen=True)
class Score:
    """How good an answer is.

    Attributes:
        value: usually in [0, 1].
        counted: False only for a question without a right answer.
        parts: further figures of the same answer (jaccard, number of fallbacks).
    """

    value: float
    counted: bool = True
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """One question, answered and scored under every reading of the answer.

    Attributes:
        sample, group, cluster, labels: of the question.
        query: hash of what was asked; of an episode, of its first query.
        answers, scores: by reading: "ours", and "official" where the paper's code reads it
            otherwise.
        response: the response, or of an episode the list of its responses' texts.
    """

    sample: str
    query: str
    answers: Mapping[str, Answer]
    scores: Mapping[str, Score]
    response: Any = None
    group: str | None = None
    cluster: str | None = None
    labels: Mapping[str, Label] = field(default_factory=dict)

    @property
    def final(self) -> bool:
        """Whether a resumed run would not ask again."""
        return all(answer.status != "error" for answer in self.answers.values())

    def to_json(self) -> dict[str, Any]:
        response = self.response
        if isinstance(response, Completion):
            response = {"completion": response.to_json()}
        elif isinstance(response, ContinuationScores):
            response = {"scores": asdict(response)}
        return {
            "sample": self.sample,
            "query": self.query,
            "answers": {k: [a.value, a.status, a.rule] for k, a in self.answers.items()},
            "scores": {k: [s.value, s.counted, dict(s.parts)] for k, s in self.scores.items()},
            "response": response,
            "group": self.group,
            "cluster": self.cluster,
            "labels": dict(self.labels),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Record":
        fields = dict(record)
        response = fields["response"]
        if isinstance(response, dict) and "completion" in response:
            response = Completion.from_json(response["completion"])
        elif isinstance(response, dict) and "scores" in response:
            tokens = tuple(map(tuple, response["scores"]["tokens"]))
            response = ContinuationScores(tokens, tuple(response["scores"]["greedy"]))
        fields["response"] = response
        fields["answers"] = {k: Answer(*a) for k, a in fields["answers"].items()}
        fields["scores"] = {k: Score(*s) for k, s in fields["scores"].items()}
        return cls(**fields)
