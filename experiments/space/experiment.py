"""SPACE: do the generated tasks measure what they claim to, and what does a small model score?

Part `questions`: text questions to a model and to scripts. Part `games`: mazes, maps and boxes.
Part `working_memory`: many games of boxes against the closed form. Part `pictures`: picture
questions to scripts. Part `vision`: a small network trained on pictures.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ritornello.common.evaluation import Record
from ritornello.common.evaluation.permutation import position_bias, reduced
from ritornello.common.evaluation.report import report_rows
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.space.figures import figures
from ritornello.experiments.space.players import (
    LanguageModel,
    ScriptedAnswers,
    ScriptedPlayer,
    question_task,
)
from ritornello.experiments.space.vision import SmallNetwork
from ritornello.methods.space.analysis import rotation_report
from ritornello.methods.space.item import Difficulty, Presentation
from ritornello.methods.space.official import load_official, published_folder
from ritornello.methods.space.prompts import check_prompts_dir
from ritornello.methods.space.questions import QUESTION_TASKS
from ritornello.methods.space.working_memory import (
    Memory,
    play_working_memory,
    success_probability,
)

if TYPE_CHECKING:
    from ritornello.common.evaluation.permutation import Permuted

__all__ = ["Games", "Pictures", "Questions", "WorkingMemory", "figures"]


@dataclass
class Questions(Experiment):
    """A family of questions (coordinate `family`), each in four rotations of its options.

    Args:
        presentation: "text" or "image".
        stimuli: questions of a family, before rotation.
        large_scale_stimuli: of the three families with a long walkthrough.
        difficulty: "easy", "medium" or "hard".
        data: folder or hub id of the published benchmark; None generates.
        folders: by family, the name of its folder there where it is not the usual one.
        prompts_dir: a folder of instructions that replace ours.
    """

    presentation: Presentation
    stimuli: int
    large_scale_stimuli: int
    difficulty: Difficulty
    data: str | None = None
    folders: dict[str, str] = field(default_factory=dict)
    prompts_dir: str | None = None

    def prepare(self) -> None:
        check_prompts_dir(self.prompts_dir)
        if self.data is not None:
            load_official(self.data, limit=1)

    def measure(
        self, arm: LanguageModel | ScriptedAnswers, cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        family = str(cell.coordinates["family"])
        if self.data is not None:
            yield from self._published(family, arm, cell, context)
            return
        records = arm.answer(self._task(family, arm, cell.seed), cell.seed, context.scratch)
        yield from rotation_measurements(records)

    def _task(self, family: str, arm: LanguageModel | ScriptedAnswers, seed: int) -> "Permuted":
        if family in ("direction", "distance", "map_sketching"):
            stimuli = arm.large_scale_stimuli or self.large_scale_stimuli
        else:
            stimuli = arm.stimuli or self.stimuli
        return question_task(
            family,
            self.presentation,
            stimuli,
            seed=seed,
            difficulty=self.difficulty,
            prompts_dir=self.prompts_dir,
            **arm.settings(seed),
        )

    def _published(
        self,
        family: str,
        arm: LanguageModel | ScriptedAnswers,
        cell: Cell,
        context: CellContext,
    ) -> Iterator[Measurement]:
        usual = published_folder(QUESTION_TASKS[family][0], self.presentation)
        folder = self.folders.get(family, usual)
        samples = load_official(str(self.data), folder)
        settings = arm.settings(cell.seed)
        task = question_task(family, self.presentation, 1, data=samples, **settings).task
        records = arm.answer(task, cell.seed, context.scratch)
        # the four rotations of a stimulus are separate entries there
        clusters: dict[str, list[float]] = {}
        for record in records:
            clusters.setdefault(str(record.cluster), []).append(record.scores["ours"].value)
        values = [float(np.mean(v)) for v in clusters.values()]
        yield Measurement("accuracy", float(np.mean(values)), samples=values)
        yield from _status(records)


def rotation_measurements(records: list[Record]) -> Iterator[Measurement]:
    """By stimulus: mean over rotations, first rotation, all rotations, calibrated; and slots."""
    report = rotation_report(records)
    first = [record.scores["ours"].value for record in reduced(records, "first")]
    official = rotation_report(records, "official").mean
    named = {
        "accuracy": report.mean,
        "accuracy_official": official,
        "first_rotation": first,
        "circular": report.circular,
    }
    if not np.isnan(report.calibrated).any():
        named["calibrated"] = report.calibrated
    for name, values in named.items():
        yield Measurement(name, float(np.mean(values)), samples=list(values))
    if any(record.answers["ours"].value is not None for record in records):
        counts = np.array(position_bias(records, 4).counts)
        for slot, share in enumerate(counts / counts.sum(), start=1):
            yield Measurement("slot_share", float(share), coordinates={"slot": slot})
    yield from _status(records)


def _status(records: list[Record]) -> Iterator[Measurement]:
    row = report_rows(records)[0]
    for name in ("n_unparsed", "n_refused", "n_error", "n_differ"):
        yield Measurement(f"{name[2:]}_share", getattr(row, name) / row.n)


@dataclass
class Games(Experiment):
    """An interactive task (coordinate `game`).

    Args:
        presentation, difficulty, prompts_dir: as of questions.
        episodes: how many.
        max_steps: actions of an episode; None for the published number.
    """

    presentation: Presentation
    episodes: int
    difficulty: Difficulty
    max_steps: int | None = None
    prompts_dir: str | None = None

    def prepare(self) -> None:
        check_prompts_dir(self.prompts_dir)

    def measure(
        self, arm: LanguageModel | ScriptedPlayer, cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        game = str(cell.coordinates["game"])
        records = arm.play(
            cell.seed,
            context.scratch,
            game=game,
            presentation=self.presentation,
            episodes=arm.episodes.get(game, self.episodes),
            difficulty=self.difficulty,
            max_steps=self.max_steps,
            prompts_dir=self.prompts_dir,
        )
        report_rows(records)  # raises if too many requests failed
        for name in records[0].scores["ours"].parts:
            values = [record.scores["ours"].parts[name] for record in records]
            yield Measurement(name, float(np.mean(values)), samples=values)


@dataclass
class WorkingMemory(Experiment):
    """Many games of n boxes (coordinate `boxes`) at once, against the exact probability.

    Args:
        games: how many.
    """

    games: int

    def measure(self, arm: "Player", cell: Cell, context: CellContext) -> Iterator[Measurement]:
        n = int(cell.coordinates["boxes"])
        rng = np.random.default_rng([cell.seed, n])
        played = play_working_memory(n, self.games, arm.memory, rng)
        success = played["success"].astype(float)
        exact = success_probability(n, arm.memory)
        yield Measurement("success", float(success.mean()), samples=success.tolist())
        yield Measurement("exact_success", exact)
        yield Measurement("success_minus_exact", float(success.mean()) - exact)
        yield Measurement("treasures", float(played["treasures"].mean()))
        yield Measurement("steps", float(played["steps"].mean()))


@dataclass
class Player:
    """A player of many games: what it remembers."""

    memory: Memory


@dataclass
class Pictures(Experiment):
    """Pictures of a family (coordinate `family`) to a network that is trained on the spot.

    Args:
        difficulty: of the pictures.
    """

    difficulty: Difficulty

    def measure(self, arm: SmallNetwork, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        right = arm.accuracy(str(cell.coordinates["family"]), self.difficulty, cell.seed)
        yield Measurement("accuracy", float(np.mean(right)), samples=right)
