"""Labels of instructions: a judge that writes JSON, or the likelihood of each label.

Small models write no JSON worth parsing, but the probabilities that they give to each allowed
label still order instructions; `LikelihoodTagger` uses those.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ritornello.common.chat import ChatClient, GenerationParams, Message, Prompt
from ritornello.common.errors import UserError

Task = Literal["difficulty", "quality", "classification"]

DIFFICULTIES = ("very easy", "easy", "medium", "hard", "very hard")
QUALITIES = ("very poor", "poor", "average", "good", "excellent")
TASK_TAGS = (
    "Information seeking",
    "Reasoning",
    "Planning",
    "Editing",
    "Coding & Debugging",
    "Math",
    "Role playing",
    "Data analysis",
    "Creative writing",
    "Advice seeking",
    "Brainstorming",
    "Others",
)


@dataclass(frozen=True)
class JudgeTask:
    """One kind of label.

    Attributes:
        field: key of the label in the judge's answer and in rows.
        labels: what it may be, from low to high where there is an order.
        request: what is asked about the query.
        fields: keys of the JSON object with what belongs into each.
    """

    field: str
    labels: tuple[str, ...]
    request: str
    fields: Mapping[str, str]


TASKS: Mapping[str, JudgeTask] = {
    "difficulty": JudgeTask(
        "difficulty",
        DIFFICULTIES,
        "State what the user intends, what one must know to answer, and how difficult the query "
        "is to answer: " + ", ".join(DIFFICULTIES) + ".",
        {"intent": "the user's aim", "knowledge": "what is needed", "difficulty": "one level"},
    ),
    "quality": JudgeTask(
        "input_quality",
        QUALITIES,
        "Rate how clear, specific and coherent the query is: " + ", ".join(QUALITIES) + ". "
        "A very poor query cannot be understood; an excellent one says everything that is needed.",
        {"explanation": "strengths and weaknesses", "input_quality": "one rating"},
    ),
    "classification": JudgeTask(
        "primary_tag",
        TASK_TAGS,
        "Which task is the query? Choose one primary tag and any others that apply from: "
        + ", ".join(TASK_TAGS)
        + ".",
        {"primary_tag": "one tag", "other_tags": "list of tags"},
    ),
}


def judge_prompt(task: JudgeTask, instruction: str, *, prefill: str) -> Prompt:
    """The judge's prompt; its answer is made to begin with `prefill`.

    The query comes last: what all prompts of a task share is computed once.
    """
    form = json.dumps(dict(task.fields))
    request = (
        f"A user sent a query to an assistant. {task.request}\nAnswer with JSON of this form: "
        f"{form}\nThe query:\n<query>\n{instruction}\n</query>"
    )
    return Prompt((Message.user(request),), prefill=prefill)


def _known_task(task: str) -> JudgeTask:
    if task not in TASKS:
        raise ValueError(f"task must be one of {sorted(TASKS)}, got {task!r}")
    return TASKS[task]


class JudgeTagger:
    """Asks a judge at temperature 0; the answer is made to begin with "{" and ends at "}".

    Args:
        llm: the judge; it must be able to continue a given beginning ("prefill").
        task: "difficulty", "quality" or "classification".
        max_tokens: budget of the judge's answer.
    """

    def __init__(self, llm: ChatClient, task: Task, *, max_tokens: int = 512) -> None:
        self.task = _known_task(task)
        self._llm = llm
        self._params = GenerationParams(max_tokens=max_tokens, stop=("}",))

    def tag(self, instructions: Sequence[str]) -> list[dict[str, object]]:
        """The judge's fields of each instruction; all None where its answer cannot be read."""
        prompts = [judge_prompt(self.task, text, prefill="{") for text in instructions]
        answers = self._llm.generate(prompts, self._params)
        return [parse_judgement("{" + answer.text + "}", self.task) for answer in answers]


def parse_judgement(text: str, task: JudgeTask) -> dict[str, object]:
    """Reads a judge's JSON; a label outside the list, or no JSON, gives None throughout.

    The label's case does not matter, and "Other" is read as "Others".
    """
    nothing: dict[str, Any] = dict.fromkeys(task.fields)
    try:
        judgement = json.loads(text, strict=False)
    except (ValueError, RecursionError):  # also endless digits and brackets
        return nothing
    if not isinstance(judgement, dict):
        return nothing
    label = _as_label(judgement.get(task.field), task.labels)
    if label is None:
        return nothing
    tagged: dict[str, object] = {name: judgement.get(name) for name in task.fields}
    tagged[task.field] = label
    if "other_tags" in tagged:
        given = tagged["other_tags"]
        others = given if isinstance(given, list) else []
        known = [_as_label(other, task.labels) for other in others]
        tagged["other_tags"] = [other for other in known if other is not None]
    return tagged


def _as_label(value: object, labels: Sequence[str]) -> str | None:
    if not isinstance(value, str):
        return None
    wanted = value.strip().lower()
    wanted = "others" if wanted == "other" else wanted
    return next((label for label in labels if label.lower() == wanted), None)


class LikelihoodTagger:
    """Gives each allowed label its probability under the judge, with its habit taken out.

    score(label) = mean token log-probability of the label after the judge prompt and the beginning
    of the JSON answer, minus the same for an empty query; the softmax over labels is the tag's
    distribution.

    Args:
        llm: the judge; it must score continuations.
        task: "difficulty", "quality" or "classification".
        calibrate: subtract the empty query's scores.
    """

    def __init__(self, llm: ChatClient, task: Task = "quality", *, calibrate: bool = True) -> None:
        self.task = _known_task(task)
        self._llm = llm
        self._calibrate = calibrate

    def tag(self, instructions: Sequence[str]) -> list[dict[str, object]]:
        """The most probable label under the task's field, and `<field>_probs` of all labels."""
        prefill = f'{{"{self.task.field}": "'
        asked = [*instructions, ""] if self._calibrate else list(instructions)
        prompts = [judge_prompt(self.task, text, prefill=prefill) for text in asked]
        options = [f'{label}"' for label in self.task.labels]
        scores = [s.mean for s in self._llm.score_continuations(prompts, [options] * len(prompts))]
        habit = scores.pop() if self._calibrate else (0.0,) * len(options)
        tagged = []
        for row in scores:
            probs = _softmax([score - usual for score, usual in zip(row, habit, strict=True)])
            best = probs.index(max(probs))
            named = dict(zip(self.task.labels, probs, strict=True))
            tagged.append(
                {self.task.field: self.task.labels[best], f"{self.task.field}_probs": named}
            )
        return tagged


def _softmax(scores: Sequence[float]) -> list[float]:
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return [weight / sum(weights) for weight in weights]


class GuardTagger:
    """Safety by a guard model (the paper: Llama-Guard-2), which answers "safe" or "unsafe".

    Args:
        llm: the guard, whose chat template holds its policy.
    """

    def __init__(self, llm: ChatClient) -> None:
        self._llm = llm

    def tag(self, instructions: Sequence[str]) -> list[dict[str, object]]:
        """`llama_guard_2`: "safe", "unsafe", or None where the guard says neither."""
        prompts = [[Message.user(text)] for text in instructions]
        answers = self._llm.generate(prompts, GenerationParams(max_tokens=16))
        first = [
            answer.text.split()[0].lower() if answer.text.split() else "" for answer in answers
        ]
        return [{"llama_guard_2": w if w in ("safe", "unsafe") else None} for w in first]


class LanguageTagger:
    """The language of an instruction, by lingua (ISO 639-1 code in capitals, None if unsure)."""

    def __init__(self) -> None:
        try:
            from lingua import LanguageDetectorBuilder
        except ModuleNotFoundError as error:
            raise UserError(
                "LanguageTagger needs lingua: pip install lingua-language-detector"
            ) from error
        self._detector = LanguageDetectorBuilder.from_all_languages().build()

    def tag(self, instructions: Sequence[str]) -> list[dict[str, object]]:
        """`language` of each instruction."""
        found = [self._detector.detect_language_of(text) for text in instructions]
        return [{"language": None if l is None else l.iso_code_639_1.name} for l in found]
