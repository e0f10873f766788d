"""SuperCorrect on modular arithmetic: a tiny model, an exact oracle as teacher, all arms.

One cell trains one arm from one seed: stage 1 from nothing (shared by the arms of a seed and a
style), then the arm's second stage, and measures solving, verifying and steadiness on held-out
problems.
"""

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ritornello.common.chat import GenerationParams
from ritornello.common.jsonl import write_jsonl
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.common.training.language_model_sft import SFTSettings
from ritornello.common.training.preference import PreferenceSettings
from ritornello.common.training.shared import train_once
from ritornello.experiments.supercorrect import student as tiny
from ritornello.experiments.supercorrect.attempts import (
    GREEDY,
    plain_case,
    right_solutions,
    second_attempts,
)
from ritornello.experiments.supercorrect.figures import figures
from ritornello.experiments.supercorrect.language_model import SecondStage
from ritornello.experiments.supercorrect.outcomes import share, steadiness
from ritornello.experiments.supercorrect.world import (
    ModularSolver,
    ModularWorld,
    Problem,
    StageOneData,
    Style,
    WordCorrectionTemplate,
    WordSolutionTemplate,
    correction_prompt,
    split_problems,
)
from ritornello.methods.supercorrect.baselines import instance_dpo_pairs, teacher_sft_rows
from ritornello.methods.supercorrect.building import build_correction_pairs, collect_errors
from ritornello.methods.supercorrect.evaluation import judge_corrections, repeated_accuracy
from ritornello.methods.supercorrect.records import ErrorCase, MathProblem
from ritornello.methods.supercorrect.solving import solve
from ritornello.methods.supercorrect.teachers import OracleTeacher
from ritornello.methods.supercorrect.training import SuperCorrectTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["ModularStudy", "Recipe", "figures"]


@dataclass(frozen=True)
class Recipe:
    """One arm: the style of stage 1, and what follows it.

    Args:
        style: of the solutions that stage 1 imitates.
        second_stage: nothing, a second attempt without training, or one of three trainings.
        steps: optimiser steps of the second stage.
        learning_rate: its peak.
        batch_size: pairs (or rows) per step, and as many replay rows.
        beta: of both DPO arms.
        nll_weight: of the chosen completion's likelihood in both DPO arms.
        replay_weight: of the replay rows in both DPO arms; imitation mixes them in evenly.
        accepted: whose right solutions the replay answers by <OK>: exact ones of seen problems, or
            the student's own of the problems on which its errors are collected.
    """

    style: Style
    second_stage: SecondStage = "none"
    steps: int = 300
    learning_rate: float = 4e-4
    batch_size: int = 16
    beta: float = 0.1
    nll_weight: float = 0.2
    replay_weight: float = 1.0
    accepted: Literal["seen", "own"] = "seen"

    def preference_settings(self, seed: int) -> PreferenceSettings:
        return PreferenceSettings(
            beta=self.beta,
            learning_rate=self.learning_rate,
            max_steps=self.steps,
            batch_size=self.batch_size,
            nll_weight=self.nll_weight,
            replay_weight=self.replay_weight,
            replay_batch_size=self.batch_size,
            max_length=tiny.CONTEXT,
            seed=seed,
        )


@dataclass(frozen=True)
class Setting:
    """What all arms of a seed share."""

    world: ModularWorld
    training: list[Problem]
    test: list[Problem]


def same_word(answer: str | None, right: str) -> bool:
    """The judge of this world, whose answers are single words."""
    return answer == right


def as_rows(problems: Sequence[Problem], style: Style) -> list[MathProblem]:
    solver = ModularSolver(style)
    return [
        MathProblem(problem.text, problem.text, str(problem.answer), solver.solution(problem.text))
        for problem in problems
    ]


@dataclass
class ModularStudy(Experiment):
    """All arms on one drawn world per seed.

    Args:
        width, layers, heads: of the tiny GPT.
        stage_one_steps, stage_one_batch, stage_one_rate: of stage 1.
        withheld, bottleneck: facts that stage 1 never shows (of `@`, of `*`).
        test_problems: held out from every training.
        collected_problems: solved by the student to find its errors.
        replay_rows: stage-1 examples mixed into the second stage.
        repeats: sampled runs per problem, on the first `repeat_problems` test problems.
        temperature: of those runs.
    """

    width: int
    layers: int
    heads: int
    stage_one_steps: int
    stage_one_batch: int
    stage_one_rate: float
    withheld: int
    bottleneck: int
    test_problems: int
    collected_problems: int
    replay_rows: int
    repeats: int
    repeat_problems: int
    temperature: float

    def measure(self, arm: Recipe, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        setting = self._setting(cell.seed)
        shared = context.scratch.parent
        hierarchical = self._stage_one(setting, "hierarchical", cell.seed, shared)
        teacher_cases = self._test_cases(setting, hierarchical)
        model = hierarchical
        if arm.style == "plain":
            model = self._stage_one(setting, "plain", cell.seed, shared)
        log: list[dict[str, float]] = []
        if arm.second_stage not in ("none", "reflexion"):
            log = self._second_stage(arm, model, setting, cell.seed, context)
        client = tiny.WordModelClient(model, f"{cell.arm}-{cell.seed}")
        yield from self._solving(arm, client, setting)
        yield from self._verifying(arm, client, setting, teacher_cases)
        yield from self._repeating(arm, client, setting, cell.seed)
        for row in log:
            if "rewards/margins" in row:
                at = {"step": round(row["step"])}
                yield Measurement("reward_margin", row["rewards/margins"], coordinates=at)
                yield Measurement("reward_accuracy", row["rewards/accuracies"], coordinates=at)

    def _setting(self, seed: int) -> Setting:
        rng = np.random.default_rng([seed, 0])
        world = ModularWorld.draw(rng, withheld=self.withheld, bottleneck=self.bottleneck)
        return Setting(world, *split_problems(rng, self.test_problems))

    def _stage_one(
        self, setting: Setting, style: Style, seed: int, shared: Path
    ) -> "PreTrainedModel":
        """Trains once per style and seed; the arms read the weights from the run's own folder."""

        def build() -> "PreTrainedModel":
            return tiny.build_model(seed, width=self.width, layers=self.layers, heads=self.heads)

        def train() -> "PreTrainedModel":
            model = build()
            tiny.train_stage_one(
                model,
                StageOneData(setting.world, style),
                setting.training,
                steps=self.stage_one_steps,
                batch_size=self.stage_one_batch,
                learning_rate=self.stage_one_rate,
                seed=seed,
            )
            return model

        weights = shared / f"stage_one-{style}-{seed}.safetensors"
        return train_once(weights, train=train, build=build)

    def _test_cases(self, setting: Setting, hierarchical: "PreTrainedModel") -> list[ErrorCase]:
        """The HSFT model's wrong solutions of test problems: the same for all arms of a seed."""
        style = "hierarchical"
        cases = collect_errors(
            tiny.WordModelClient(hierarchical),
            as_rows(setting.test, style),
            same_word,
            template=WordSolutionTemplate(style),
            params=GREEDY,
        )
        solver = ModularSolver(style)
        found = [solver.correction(case.problem, case.student_steps).step for case in cases]
        return [
            case.with_error(place)
            for case, place in zip(cases, found, strict=True)
            if place is not None and place <= len(case.student_steps)
        ]

    def _second_stage(
        self,
        arm: Recipe,
        model: "PreTrainedModel",
        setting: Setting,
        seed: int,
        context: CellContext,
    ) -> list[dict[str, float]]:
        template = WordSolutionTemplate(arm.style)
        oracle = OracleTeacher(ModularSolver(arm.style))
        client = tiny.WordModelClient(model, "hsft")
        problems = as_rows(setting.training[: self.collected_problems], arm.style)
        cases = collect_errors(client, problems, same_word, template=template, params=GREEDY)
        corrections = build_correction_pairs(
            cases, oracle, client, oracle, template=WordCorrectionTemplate(), params=GREEDY
        )
        pairs = corrections.rows
        if arm.second_stage == "instance_dpo":
            pairs = instance_dpo_pairs(cases, template)
        write_jsonl(context.artifacts / "pairs.jsonl", pairs)
        if not pairs:
            return []
        accepted = (
            right_solutions(client, problems, cases, template) if arm.accepted == "own" else []
        )
        replay = self._replay(setting, arm.style, seed, accepted)
        model.train()
        with tempfile.TemporaryDirectory(dir=context.scratch) as folder:
            trainer = SuperCorrectTrainer(
                model, tiny.build_tokenizer(), output_dir=folder, hsft_done=True, use_cpu=True
            )
            if arm.second_stage == "teacher_sft":
                return trainer.hsft(*self._imitation(arm, pairs, replay, seed))
            return trainer.cross_dpo(pairs, arm.preference_settings(seed), replay=replay)

    def _imitation(
        self,
        arm: Recipe,
        pairs: Sequence[dict[str, Any]],
        replay: Sequence[dict[str, str]],
        seed: int,
    ) -> tuple[list[dict[str, Any]], SFTSettings]:
        """Teacher corrections and replay rows, half and half, for the DPO arms' rows per step."""
        rng = np.random.default_rng([seed, 5])
        count = arm.steps * arm.batch_size
        corrections = teacher_sft_rows(pairs)
        rows = [corrections[index] for index in rng.integers(len(corrections), size=count)]
        rows += [replay[index] for index in rng.integers(len(replay), size=count)]
        settings = SFTSettings(
            learning_rate=arm.learning_rate,
            max_steps=arm.steps,
            batch_size=2 * arm.batch_size,
            warmup_ratio=0.05,
            max_length=tiny.CONTEXT,
            seed=seed,
        )
        return rows, settings

    def _replay(
        self,
        setting: Setting,
        style: Style,
        seed: int,
        accepted: Sequence[tuple[str, Sequence[str]]],
    ) -> list[dict[str, str]]:
        """Stage-1 material: 60 % solving, 40 % right solutions answered by <OK>."""
        rng = np.random.default_rng([seed, 4])
        solving = StageOneData(setting.world, style, correction_share=0.0)
        rows = []
        for problem in setting.world.sample(rng, setting.training, self.replay_rows):
            if rng.random() < 0.6:
                prompt, completion = solving.row(problem, rng)
            else:
                text, steps = problem.text, problem.solution(style)
                if accepted:
                    text, steps = accepted[int(rng.integers(len(accepted)))]
                prompt, completion = correction_prompt(text, list(steps)), "<OK>"
            rows.append({"prompt": prompt, "completion": completion})
        return rows

    def _solving(
        self, arm: Recipe, client: tiny.WordModelClient, setting: Setting
    ) -> Iterator[Measurement]:
        template, correction = WordSolutionTemplate(arm.style), WordCorrectionTemplate()
        texts = [problem.text for problem in setting.test]
        solutions = solve(client, texts, template=template, correction=correction, params=GREEDY)
        if arm.second_stage == "reflexion":
            solutions = second_attempts(client, texts, solutions, template, self.temperature)
        right = [str(problem.answer) for problem in setting.test]
        first = [same_word(s.first_answer, r) for s, r in zip(solutions, right, strict=True)]
        final = [same_word(s.answer, r) for s, r in zip(solutions, right, strict=True)]
        counted = final if arm.second_stage == "reflexion" else first
        kinds = [setting.world.kind(problem) for problem in setting.test]
        for kind in ("seen", "withheld", "bottleneck"):
            of_kind = [float(ok) for ok, k in zip(counted, kinds, strict=True) if k == kind]
            yield share("accuracy", of_kind, kind=kind)
        yield share("accuracy", counted, kind="all")
        yield share("verified_accuracy", final, kind="all")
        gains = [float(b) - float(a) for a, b in zip(first, final, strict=True)]
        yield Measurement("verification_gain", statistics.fmean(gains), samples=gains)
        alarms = [
            s.claims[0] is not None and s.claims[0].step is not None
            for s, ok in zip(solutions, first, strict=True)
            if ok and s.claims
        ]
        if alarms:
            yield share("false_alarms", alarms)

    def _verifying(
        self,
        arm: Recipe,
        client: tiny.WordModelClient,
        setting: Setting,
        cases: Sequence[ErrorCase],
    ) -> Iterator[Measurement]:
        if not cases:
            return
        solver = ModularSolver(arm.style)
        if arm.style == "plain":
            cases = [plain_case(case) for case in cases]
        located, corrected = judge_corrections(
            client,
            cases,
            template=WordCorrectionTemplate(),
            params=GREEDY,
            is_right=lambda case, claim: solver.is_right_correction(
                case.problem, case.student_steps, claim
            ),
        )
        yield share("locate", located)
        yield share("correct", corrected)
        yield Measurement("wrong_solutions", len(cases))

    def _repeating(
        self, arm: Recipe, client: tiny.WordModelClient, setting: Setting, seed: int
    ) -> Iterator[Measurement]:
        runs = repeated_accuracy(
            client,
            as_rows(setting.test[: self.repeat_problems], arm.style),
            repeats=self.repeats,
            params=GenerationParams(max_tokens=40, temperature=self.temperature, seed=seed),
            template=WordSolutionTemplate(arm.style),
            judge=same_word,
        )
        yield from steadiness(runs)
