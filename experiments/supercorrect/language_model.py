"""SuperCorrect on a language model and word problems: the paper's own pipeline, end to end."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ritornello.common.chat import ChatClient, GenerationParams, TransformersClient
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.common.training.language_model_sft import SFTSettings
from ritornello.common.training.preference import PreferenceSettings
from ritornello.methods.supercorrect.answers import answers_equal
from ritornello.methods.supercorrect.baselines import (
    instance_dpo_pairs,
    plain_sft_rows,
    reflexion,
    teacher_sft_rows,
)
from ritornello.methods.supercorrect.building import (
    build_correction_pairs,
    build_hsft_dataset,
    collect_errors,
)
from ritornello.methods.supercorrect.evaluation import judge_corrections
from ritornello.methods.supercorrect.records import ErrorCase, MathProblem
from ritornello.methods.supercorrect.solving import solve
from ritornello.methods.supercorrect.teachers import (
    Inspector,
    LLMInspector,
    LLMTeacher,
    TeacherClient,
)
from ritornello.methods.supercorrect.templates import CorrectionTemplate
from ritornello.methods.supercorrect.training import SuperCorrectTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Stage = Literal["none", "reflexion", "instance_dpo", "teacher_sft", "cross_dpo"]


@dataclass(frozen=True)
class Pipeline:
    """One arm: what stage 1 imitates, and what follows.

    Args:
        first_stage: nothing, the reference solutions, or hierarchical thoughts.
        second_stage: see `baselines`.
        include_wrong_step: layout of the correction pairs.
    """

    first_stage: Literal["none", "sft", "hsft"]
    second_stage: Stage = "none"
    include_wrong_step: bool = True


def endpoint_teacher(client: Callable[[], ChatClient]) -> tuple[TeacherClient, Inspector]:
    """The same model as teacher and inspector, behind any chat client."""
    model = client()
    return LLMTeacher(model), LLMInspector(model)


def local_client(
    model: Callable[[], "PreTrainedModel"], tokenizer: Callable[[], "PreTrainedTokenizerBase"]
) -> ChatClient:
    """A local teacher."""
    return TransformersClient(model(), tokenizer())


@dataclass
class LanguageModelStudy(Experiment):
    """Stage 1, error collection, stage 2 and evaluation of one model.

    Args:
        model, tokenizer: loaders of the student.
        problems: `problems(split, limit)`.
        teacher: makes teacher and inspector.
        limit: most problems of a split.
        collect_from: share of the training problems kept from stage 1 for error collection.
        hsft: settings of stage 1 (and of the imitation baselines).
        preferences: settings of stage 2.
        max_tokens: most tokens of an answer.
    """

    model: Callable[[], "PreTrainedModel"]
    tokenizer: Callable[[], "PreTrainedTokenizerBase"]
    problems: Callable[..., list[MathProblem]]
    teacher: Callable[[], tuple[TeacherClient, Inspector]]
    limit: int | None
    collect_from: float
    hsft: SFTSettings
    preferences: PreferenceSettings
    max_tokens: int

    def measure(self, arm: Pipeline, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        training = self.problems("train", self.limit)
        test = self.problems("test", self.limit)
        fresh = round(len(training) * self.collect_from)
        tokenizer = self.tokenizer()
        trainer = SuperCorrectTrainer(
            self.model(),
            tokenizer,
            output_dir=context.scratch,
            hsft_done=arm.first_stage == "none",
        )
        if arm.first_stage == "sft":
            trainer.hsft(plain_sft_rows(training[fresh:]), self.hsft)
        elif arm.first_stage == "hsft":
            self._hsft(trainer, training[fresh:], context.artifacts)
        if arm.second_stage not in ("none", "reflexion"):
            self._second_stage(arm, trainer, training[:fresh], context.artifacts)
        yield from self._evaluate(arm, TransformersClient(trainer.model.eval(), tokenizer), test)

    def _params(self) -> GenerationParams:
        return GenerationParams(max_tokens=self.max_tokens)

    def _hsft(
        self, trainer: SuperCorrectTrainer, problems: Sequence[MathProblem], folder: Path
    ) -> None:
        teacher, inspector = self.teacher()
        data = build_hsft_dataset(problems, teacher, inspector, journal=folder / "thoughts.jsonl")
        trainer.hsft(data.rows, self.hsft)

    def _second_stage(
        self,
        arm: Pipeline,
        trainer: SuperCorrectTrainer,
        problems: Sequence[MathProblem],
        folder: Path,
    ) -> None:
        student = TransformersClient(trainer.model.eval(), trainer.tokenizer)
        cases = collect_errors(student, problems, params=self._params())
        if arm.second_stage == "instance_dpo":
            trainer.cross_dpo(instance_dpo_pairs(cases), self.preferences)
            return
        teacher, inspector = self.teacher()
        pairs = build_correction_pairs(
            cases,
            teacher,
            student,
            inspector,
            template=CorrectionTemplate(include_wrong_step=arm.include_wrong_step),
            params=self._params(),
            journal=folder / "corrections.jsonl",
        )
        if arm.second_stage == "teacher_sft":
            trainer.hsft(teacher_sft_rows(pairs.rows), self.hsft)
        else:
            trainer.cross_dpo(pairs.rows, self.preferences)

    def _evaluate(
        self, arm: Pipeline, client: ChatClient, test: Sequence[MathProblem]
    ) -> Iterator[Measurement]:
        texts = [problem.problem for problem in test]
        if arm.second_stage == "reflexion":
            solutions = reflexion(client, texts, params=self._params())
        else:
            solutions = solve(client, texts, params=self._params())
        for metric, answers in (
            ("first_accuracy", [solution.first_answer for solution in solutions]),
            ("verified_accuracy", [solution.answer for solution in solutions]),
        ):
            right = [
                float(answers_equal(answer, problem.answer))
                for answer, problem in zip(answers, test, strict=True)
            ]
            yield Measurement(metric, statistics.fmean(right), samples=right)
        located, corrected = self._judged(client, test)
        yield Measurement("wrong_solutions", len(located))
        if located:
            yield Measurement("locate", statistics.fmean(located))
            yield Measurement("correct", statistics.fmean(corrected))

    def _judged(
        self, client: ChatClient, test: Sequence[MathProblem]
    ) -> tuple[list[bool], list[bool]]:
        """The model's own wrong test solutions, their first errors named by the teacher."""
        teacher, _ = self.teacher()
        read = CorrectionTemplate()
        cases: list[ErrorCase] = []
        wrong = [c for c in collect_errors(client, test, params=self._params()) if c.student_steps]
        texts = teacher.corrections(wrong, [None] * len(wrong))
        for case, text in zip(wrong, texts, strict=True):
            claim = read.parse(text)
            if claim is not None and 1 <= (claim.step or 0) <= len(case.student_steps):
                cases.append(case.with_error(claim.step, text))
        if not cases:
            return [], []
        return judge_corrections(client, cases, params=self._params())
