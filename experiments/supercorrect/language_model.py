"""SuperCorrect on a language model and word problems: the paper's own pipeline, end to end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ritornello.common.cache import cache_root, file_lock
from ritornello.common.chat import (
    CachedClient,
    ChatClient,
    GenerationParams,
    TransformersClient,
    check_server,
)
from ritornello.common.jsonl import write_jsonl
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.common.training.language_model_sft import SFTSettings, tokenize_row
from ritornello.common.training.preference import PreferenceSettings, tokenize_pair
from ritornello.experiments.supercorrect.outcomes import share, steadiness
from ritornello.methods.supercorrect.answers import answers_equal
from ritornello.methods.supercorrect.baselines import (
    CHAIN_OF_THOUGHT,
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
from ritornello.methods.supercorrect.evaluation import judge_corrections, repeated_accuracy
from ritornello.methods.supercorrect.protocols import (
    LAYOUTS,
    MINERVA_MATH,
    EvaluationProtocol,
    few_shot_protocol,
    native_protocol,
    pass_at_1,
)
from ritornello.methods.supercorrect.records import DataSet, ErrorCase, MathProblem
from ritornello.methods.supercorrect.solving import solve
from ritornello.methods.supercorrect.teachers import (
    Inspector,
    LLMInspector,
    LLMTeacher,
    TeacherClient,
)
from ritornello.methods.supercorrect.templates import CorrectionTemplate, HierarchicalTemplate
from ritornello.methods.supercorrect.training import SuperCorrectTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SecondStage = Literal["none", "reflexion", "instance_dpo", "teacher_sft", "cross_dpo"]


@dataclass(frozen=True)
class Pipeline:
    """One arm: what stage 1 imitates, and what follows.

    Args:
        first_stage: nothing, the reference solutions, or hierarchical thoughts.
        second_stage: see `baselines`; those that train need hierarchical thoughts before.
        include_wrong_step: layout of the correction pairs.
    """

    first_stage: Literal["none", "sft", "hsft"]
    second_stage: SecondStage = "none"
    include_wrong_step: bool = True

    @property
    def template(self) -> HierarchicalTemplate:
        """Asks for solutions as stage 1 taught them; plainly where it taught no thoughts."""
        if self.first_stage == "hsft":
            return HierarchicalTemplate()
        return HierarchicalTemplate(CHAIN_OF_THOUGHT)


def teacher_and_inspector(client: Callable[[], ChatClient]) -> tuple[TeacherClient, Inspector]:
    """One model in both roles: an endpoint, or a local one; no question is asked it twice."""
    model = CachedClient(client(), cache_root() / "supercorrect" / "teacher.sqlite")
    return LLMTeacher(model), LLMInspector(model)


@dataclass
class LanguageModelStudy(Experiment):
    """Stage 1, error collection, stage 2 and evaluation of one model.

    Args:
        model, tokenizer: loaders of the student.
        problems: `problems(split, limit)`.
        teacher: makes teacher and inspector.
        limit: most problems of a source in a split.
        collect_from: share of the training problems kept from stage 1 for error collection.
        hsft: settings of stage 1 (and of the imitation baselines); the seed is the cell's.
        preferences: settings of stage 2; likewise.
        max_tokens: most tokens of an answer.
        repeats: sampled runs over the test problems of level 5 (Fig. 5); 0 for none.
        repeat_problems: how many of them.
        temperature, top_p: of those runs.
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
    repeats: int = 0
    repeat_problems: int = 300
    temperature: float = 0.7
    top_p: float = 0.8

    @cached_property
    def reviewers(self) -> tuple[TeacherClient, Inspector]:
        return self.teacher()

    @property
    def params(self) -> GenerationParams:
        return GenerationParams(max_tokens=self.max_tokens)

    def prepare(self) -> None:
        """Fetches the problems; says early if there are too few to show, or no teacher."""
        training, test = (self.problems(split, self.limit) for split in ("train", "test"))
        for source in _sources(test):
            _few_shot(training, source)
        check_server(self.teacher)

    def measure(self, arm: Pipeline, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        training = self.problems("train", self.limit)
        collected, imitated = _divide(training, self.collect_from)
        tokenizer = self.tokenizer()
        trainer = SuperCorrectTrainer(self.model(), tokenizer, output_dir=context.scratch)
        settings = replace(self.hsft, seed=cell.seed)
        if arm.first_stage == "sft":
            trainer.hsft(_fitting(tokenizer, plain_sft_rows(imitated), settings), settings)
        elif arm.first_stage == "hsft":
            thoughts = self._thoughts(imitated, context.scratch.parent)
            write_jsonl(context.artifacts / "thoughts.jsonl", thoughts)
            trainer.hsft(_fitting(tokenizer, thoughts.rows, settings), settings)
        model = trainer.model
        if arm.second_stage not in ("none", "reflexion"):
            model = self._second_stage(arm, trainer, collected, cell.seed, context)
        # verification and the search for errors begin with the same answers
        client = CachedClient(
            TransformersClient(model, tokenizer, end_at_context=True),
            context.scratch / "answers.sqlite",
        )
        test = self.problems("test", self.limit)
        for source in _sources(test):
            asked = [problem for problem in test if problem.source == source]
            yield from self._solving(arm, client, asked)
            few_shot = _few_shot(training, source, begin=str(tokenizer.bos_token or ""))
            for name, protocol in (("native", native_protocol()), ("few_shot", few_shot)):
                right = pass_at_1(client, asked, protocol, max_tokens=self.max_tokens)
                yield share("pass_at_1", right, protocol=name, source=source)
        yield from self._correcting(arm, client, test)
        yield from self._repeating(arm, client, test, cell.seed)

    def _thoughts(self, problems: Sequence[MathProblem], shared: Path) -> DataSet:
        """Asked for once in a run: the teacher's thoughts depend on no arm and no seed."""
        with file_lock(shared / "thoughts.lock"):
            return build_hsft_dataset(problems, *self.reviewers, journal=shared / "thoughts.jsonl")

    def _second_stage(
        self,
        arm: Pipeline,
        trainer: SuperCorrectTrainer,
        problems: Sequence[MathProblem],
        seed: int,
        context: CellContext,
    ) -> "PreTrainedModel":
        # verification asks about whole solutions: a rambling one may leave little room, or none
        student = CachedClient(
            TransformersClient(trainer.model, trainer.tokenizer, end_at_context=True),
            context.scratch / "collected.sqlite",
        )
        cases = collect_errors(student, problems, template=arm.template, params=self.params)
        pairs = self._pairs(arm, student, problems, cases, context)
        write_jsonl(context.artifacts / "pairs.jsonl", pairs)
        if arm.second_stage == "teacher_sft":
            # checkpoints of its own: those of stage 1 are not to be continued
            folder = context.scratch / "imitation"
            trainer = SuperCorrectTrainer(trainer.model, trainer.tokenizer, output_dir=folder)
            rows = _fitting(trainer.tokenizer, teacher_sft_rows(pairs), self.hsft)
            trainer.hsft(rows, replace(self.hsft, seed=seed))
        else:
            fitting = _fitting(trainer.tokenizer, pairs, self.preferences)
            trainer.cross_dpo(fitting, replace(self.preferences, seed=seed))
        return trainer.model

    def _pairs(
        self,
        arm: Pipeline,
        student: ChatClient,
        problems: Sequence[MathProblem],
        cases: Sequence[ErrorCase],
        context: CellContext,
    ) -> Sequence[Mapping[str, Any]]:
        if arm.second_stage == "instance_dpo":
            wrong = {case.id for case in cases}
            right = build_hsft_dataset(
                [problem for problem in problems if problem.id in wrong],
                *self.reviewers,
                journal=context.artifacts / "right_solutions.jsonl",
            )
            thoughts = {row["id"]: row["completion"] for row in right}
            return instance_dpo_pairs(
                [replace(c, solution=thoughts[c.id]) for c in cases if c.id in thoughts]
            )
        teacher, inspector = self.reviewers
        return build_correction_pairs(
            cases,
            teacher,
            student,
            inspector,
            template=CorrectionTemplate(include_wrong_step=arm.include_wrong_step),
            params=self.params,
            journal=context.artifacts / "corrections.jsonl",
        ).rows

    def _solving(
        self, arm: Pipeline, client: ChatClient, problems: Sequence[MathProblem]
    ) -> Iterator[Measurement]:
        """Pass@1 by the arm's own prompt, then after its verification pass or second attempt."""
        texts = [problem.problem for problem in problems]
        if arm.second_stage == "reflexion":
            solutions = reflexion(client, texts, params=self.params)
        else:
            solutions = solve(client, texts, template=arm.template, params=self.params)
        right = [problem.answer for problem in problems]
        first = [answers_equal(s.first_answer, r) for s, r in zip(solutions, right, strict=True)]
        final = [answers_equal(s.answer, r) for s, r in zip(solutions, right, strict=True)]
        source = problems[0].source
        yield share("pass_at_1", first, protocol="instruction", source=source)
        yield share("verified_accuracy", final, source=source)

    def _correcting(
        self, arm: Pipeline, client: ChatClient, test: Sequence[MathProblem]
    ) -> Iterator[Measurement]:
        """Table 6 on the wrong test solutions, their first errors named by the teacher."""
        teacher, _ = self.reviewers
        read = CorrectionTemplate()
        wrong = collect_errors(client, test, template=arm.template, params=self.params)
        wrong = [case for case in wrong if case.student_steps]
        texts = teacher.corrections(wrong, [None] * len(wrong))
        cases: list[ErrorCase] = []
        for case, text in zip(wrong, texts, strict=True):
            claim = read.parse(text)
            if claim is not None and 1 <= (claim.step or 0) <= len(case.student_steps):
                cases.append(case.with_error(claim.step or 0, text))
        yield Measurement("wrong_solutions", len(cases))
        if cases:
            located, corrected = judge_corrections(client, cases, params=self.params)
            yield share("locate", located)
            yield share("correct", corrected)

    def _repeating(
        self, arm: Pipeline, client: ChatClient, test: Sequence[MathProblem], seed: int
    ) -> Iterator[Measurement]:
        """Fig. 5: independent sampled runs over the hardest problems."""
        hardest = [problem for problem in test if problem.level == 5][: self.repeat_problems]
        if not self.repeats or not hardest:
            return
        params = replace(self.params, temperature=self.temperature, top_p=self.top_p, seed=seed)
        runs = repeated_accuracy(
            client, hardest, repeats=self.repeats, params=params, template=arm.template
        )
        yield from steadiness(runs)
        means = [sum(run) / len(run) for run in runs]
        away = [abs(mean - sum(means) / len(means)) for mean in means]
        yield Measurement("sampled_deviation", sum(away) / len(away), samples=away)


def _fitting(
    tokenizer: "PreTrainedTokenizerBase",
    rows: Sequence[Mapping[str, Any]],
    settings: SFTSettings | PreferenceSettings,
) -> list[Mapping[str, Any]]:
    """The rows (or pairs) that are not longer than `max_length`, nor empty: none is ever cut."""
    kept = []
    for row in rows:
        texts = [
            row[name] for name in ("prompt", "completion", "chosen", "rejected") if name in row
        ]
        tokenize = tokenize_row if "completion" in row else tokenize_pair
        try:
            tokenize(tokenizer, *texts, max_length=settings.max_length)
        except ValueError:
            continue
        kept.append(row)
    return kept


def _divide(
    problems: Sequence[MathProblem], collect_from: float
) -> tuple[list[MathProblem], list[MathProblem]]:
    """The first problems of every source for error collection, the others for stage 1."""
    collected: list[MathProblem] = []
    imitated: list[MathProblem] = []
    for source in _sources(problems):
        own = [problem for problem in problems if problem.source == source]
        split = round(len(own) * collect_from)
        collected += own[:split]
        imitated += own[split:]
    return collected, imitated


def _sources(problems: Sequence[MathProblem]) -> list[str]:
    return list(dict.fromkeys(problem.source for problem in problems))


def _few_shot(
    training: Sequence[MathProblem], source: str, *, begin: str = ""
) -> EvaluationProtocol:
    examples = [problem for problem in training if problem.source == source]
    return few_shot_protocol(examples, LAYOUTS.get(source, MINERVA_MATH), begin=begin)
