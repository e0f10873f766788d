"""The question tasks: samples from the generators, asked and scored (sec. 7, 5)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ritornello.common.chat import (
    Completion,
    ContinuationScores,
    GenerationParams,
    Image,
    Message,
    Prompt,
    Text,
)
from ritornello.common.evaluation import Answer, Choice, ChoiceTarget, Query, Sample, Score
from ritornello.common.evaluation.options import render_options
from ritornello.methods.space.attention import (
    block_tapping,
    selective_attention,
    spatial_addition,
)
from ritornello.methods.space.drawing import png
from ritornello.methods.space.form_board import form_board
from ritornello.methods.space.item import DIFFICULTIES, Difficulty, Item, Piece, Presentation
from ritornello.methods.space.layouts import direction, distance, map_sketching
from ritornello.methods.space.parsing import official_answer, parse_answer
from ritornello.methods.space.perception import (
    line_orientation,
    perspective_taking,
    water_level,
)
from ritornello.methods.space.prompts import QUESTION_END, joined, load_prompt
from ritornello.methods.space.rotation import mental_rotation

PUBLISHED_PARAMS = GenerationParams(max_tokens=2048, temperature=0.5)

Generator = Callable[[np.random.Generator, Difficulty, Presentation], Item]

# name → (published folder name, generator)
QUESTION_TASKS: dict[str, tuple[str, Generator]] = {
    "direction": ("DirectionEstimation", direction),
    "distance": ("DistanceEstimation", distance),
    "map_sketching": ("MapSketching", map_sketching),
    "mrt": ("MRT", mental_rotation),
    "ptt": ("PTT", perspective_taking),
    "wlt": ("WLT", water_level),
    "mpfb": ("MPFB", form_board),
    "jlo": ("JLO", line_orientation),
    "satt": ("SAtt", selective_attention),
    "cbtt": ("CBTT", block_tapping),
    "sadd": ("SAdd", spatial_addition),
}
_FOLDERS = {name: folder for name, (folder, _) in QUESTION_TASKS.items()}


def make_task(
    name: str,
    presentation: Presentation = "text",
    n: int = 40,
    seed: int = 0,
    difficulty: Difficulty = "medium",
) -> list[Sample]:
    """Generates questions; the same ones for the same arguments.

    Every question draws from a generator of its own, so the first ten of forty are those of ten.

    Args:
        name: one of `QUESTION_TASKS`, or its published name ("MRT", "MapSketching").
        presentation: "text" or "image"; wlt has pictures only.
        n: number of stimuli.
        seed: of the random numbers.
        difficulty: "easy", "medium" or "hard".

    Returns:
        Samples with four distinct options, one of them right, in a uniformly drawn slot.

    Raises:
        ValueError: an unknown name, presentation or difficulty, or n < 1.
    """
    name = check_task(name, presentation, difficulty, _FOLDERS)
    if n < 1:
        raise ValueError(f"n must be >= 1, got {n}")
    _, generator = QUESTION_TASKS[name]
    samples = []
    for index in range(n):
        rng = np.random.default_rng([seed, index, *name.encode()])
        item = generator(rng, difficulty, presentation)
        while not item.distinct:
            item = generator(rng, difficulty, presentation)
        identity = f"{name}-{presentation}-{difficulty}-{seed}-{index}"
        sample = Sample(
            identity,
            tuple(map(_part, item.stimulus)),
            tuple(Choice((_part(option),), str(key)) for key, option in enumerate(item.options)),
            ChoiceTarget.of(0),
            cluster=identity,
            labels={"task": name, "presentation": presentation, "difficulty": difficulty},
            meta=dict(item.facts),
        )
        order = [int(slot) for slot in rng.permutation(4)]
        samples.append(_arranged(sample, order))
    return samples


def check_task(name: str, presentation: str, difficulty: str, published: Mapping[str, str]) -> str:
    """Our name of a task, given that or the published one; raises ValueError for others.

    Args:
        name, presentation, difficulty: as in `make_task`.
        published: our name → the published one.
    """
    ours = {folder.casefold(): key for key, folder in published.items()}
    name = ours.get(name.casefold(), name)
    if name not in published:
        raise ValueError(f"name must be one of {sorted(published)}, got {name!r}")
    accepted = ("image",) if name == "wlt" else ("text", "image")
    if presentation not in accepted:
        raise ValueError(f"presentation of {name} must be one of {accepted}, got {presentation!r}")
    if difficulty not in DIFFICULTIES:
        raise ValueError(f"difficulty must be one of {DIFFICULTIES}, got {difficulty!r}")
    return name


@dataclass
class SpaceQATask:
    """One family of questions, for `evaluate`; wrap it in `Permuted` for the four rotations.

    Readings: "ours" (the last JSON object with a whole number) and "official" (the published
    parser). Values are 0-based options; of published data, whose options are in the text, the
    number itself.

    Args:
        family: a name of `QUESTION_TASKS`.
        presentation, stimuli, seed, difficulty: as in `make_task`.
        data: questions to use instead, for example `load_official(...)`.
        mode: "generate" a reply, or compare the likelihood of the four numbers.
        params: decoding; the published loop samples once at temperature 0.5.
        prompts_dir: a folder of instructions that replace ours.
    """

    family: str
    presentation: Presentation = "text"
    stimuli: int = 40
    seed: int = 0
    difficulty: Difficulty = "medium"
    data: Sequence[Sample] | None = None
    mode: Literal["generate", "likelihood"] = "generate"
    params: GenerationParams = PUBLISHED_PARAMS
    prompts_dir: str | Path | None = None

    def __post_init__(self) -> None:
        self.family = check_task(self.family, self.presentation, self.difficulty, _FOLDERS)
        if self.mode not in ("generate", "likelihood"):
            raise ValueError(f"mode must be generate or likelihood, got {self.mode!r}")

    @property
    def name(self) -> str:
        """space/<family>/<presentation>."""
        return f"space/{self.family}/{self.presentation}"

    @cached_property
    def _samples(self) -> list[Sample]:
        if self.data is not None:
            return list(self.data)
        return make_task(self.family, self.presentation, self.stimuli, self.seed, self.difficulty)

    @cached_property
    def _instruction(self) -> str:
        return load_prompt(self.family, self.presentation, self.prompts_dir)

    def samples(self) -> list[Sample]:
        """The questions: `data` where given, else those drawn from `seed`."""
        return self._samples

    def render(self, sample: Sample) -> Query:
        """Instruction, stimulus and numbered options; a question without options as it stands."""
        if not sample.choices:
            return Query([Message.user(_loaded(sample.parts))], self.params)
        parts: list[Text | Image] = [Text(self._instruction + "\n")]
        for part in sample.parts:
            parts += [part, Text("\n")]
        parts += [Text("Options:\n"), *render_options(sample.choices, "1.")]
        parts.append(Text("\n" + QUESTION_END))
        messages = [Message.user(joined(parts))]
        if self.mode == "generate":
            return Query(messages, self.params)
        keys = tuple(f" {number}" for number in range(1, len(sample.choices) + 1))
        return Query(Prompt(tuple(messages), prefill='{"answer":'), self.params, keys)

    def parse(self, sample: Sample, response: Any) -> dict[str, Answer]:
        """The option picked (from 0), or the number given, by our and the published reading."""
        if isinstance(response, ContinuationScores):
            return {"ours": Answer(response.best, rule="likelihood")}
        assert isinstance(response, Completion)
        ours, official = parse_answer(response.text), official_answer(response.text)
        if not sample.choices:
            return {"ours": _answer(ours), "official": _answer(official)}
        slot = None if ours is None or not 1 <= ours <= len(sample.choices) else ours - 1
        return {
            "ours": _answer(slot),
            "official": _answer(official - 1 if isinstance(official, int) else official),
        }

    def score(self, sample: Sample, answer: Answer) -> Score:
        """1 where the answer is right."""
        if not sample.choices:
            expected = sample.meta["answer"]
            return Score(float(answer.status == "ok" and answer.value == expected))
        return Score(float(answer.value == sample.gold[0] and not isinstance(answer.value, bool)))


def _answer(value: Any) -> Answer:
    return Answer.unparsed() if value is None else Answer(value)


def _part(piece: Piece) -> Text | Image:
    return Text(piece) if isinstance(piece, str) else png(piece)


def _arranged(sample: Sample, order: Sequence[int]) -> Sample:
    """The sample with its options in another order, still as the unpermuted question."""
    gold = list(order).index(sample.gold[0])
    return replace(
        sample,
        choices=tuple(sample.choices[index] for index in order),
        target=ChoiceTarget.of(gold),
        labels={**sample.labels, "gold": gold},
    )


def _loaded(parts: Sequence[Any]) -> list[Text | Image]:
    """Parts of published questions, whose media are read when they are asked."""
    return [p for part in parts for p in (part.load() if hasattr(part, "load") else (part,))]
