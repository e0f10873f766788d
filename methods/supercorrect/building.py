"""Data of both stages: reviewed thoughts for HSFT, error cases and correction pairs for DPO.

Every text of a teacher runs through one review: it must parse (at most three attempts), then an
inspector may object, at most `max_rounds` times (sec. 3.1 and 3.2).
"""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from ritornello.common.chat import ChatClient, GenerationParams, Journal
from ritornello.common.errors import UserError
from ritornello.methods.supercorrect.answers import answers_equal
from ritornello.methods.supercorrect.records import (
    DataSet,
    ErrorCase,
    MathProblem,
    ReviewLog,
    State,
)
from ritornello.methods.supercorrect.solving import read_solution
from ritornello.methods.supercorrect.teachers import Inspector, TeacherClient
from ritornello.methods.supercorrect.templates import (
    Correction,
    CorrectionFormat,
    CorrectionTemplate,
    HierarchicalTemplate,
    SolutionTemplate,
    TextPrompt,
    as_client_prompt,
)
from ritornello.methods.supercorrect.traces import Trace, trace_faults

PARSE_ATTEMPTS = 3

Item = TypeVar("Item", MathProblem, ErrorCase)
Parsed = TypeVar("Parsed")
Judge = Callable[[str | None, str], bool]
"""judge(student answer, right answer)."""


@dataclass
class _Review(Generic[Item, Parsed]):
    """One item on its way: TEACHER -> PARSED -> INSPECTED -> ACCEPTED, or one of the exits.

    `objections` holds what was wrong with every attempt so far, so that no question is asked twice
    in the same words: a teacher that decodes greedily would repeat its answer.
    """

    item: Item
    state: State = "TEACHER"
    attempts: int = 0
    rounds: int = 0
    objections: list[str] = field(default_factory=list)
    text: str = ""
    parsed: Parsed | None = None

    @property
    def feedback(self) -> str | None:
        """The objections, numbered; None at the first attempt."""
        lines = [f"{number}. {text}" for number, text in enumerate(self.objections, 1)]
        return "\n".join(lines) or None


def _review(
    stage: str,
    items: Sequence[Item],
    ask: Callable[[Sequence[Item], Sequence[str | None]], list[str]],
    parse: Callable[[str], Parsed | None],
    unreadable: Callable[[str], str],
    inspect: Callable[[Sequence[Item], Sequence[Parsed]], list[str | None]] | None,
    max_rounds: int,
    journal: Path | None,
) -> list[_Review[Item, Parsed]]:
    """Reviews every item; those that `journal` knows in a final state are not asked about again."""
    if len({item.id for item in items}) != len(items):
        raise ValueError(f"ids of {stage} items must be unique")
    reviews: list[_Review[Item, Parsed]] = [_Review(item) for item in items]
    with nullcontext() if journal is None else Journal(journal) as file:
        log = ReviewLog(stage, file)
        open_ = _restore(reviews, log, parse, f"journal {journal} holds an accepted {stage} text")

        def move(review: _Review[Item, Parsed], state: State) -> None:
            review.state = state
            log.write(review.item.id, state, review.rounds, review.text)

        while open_:
            texts = ask([review.item for review in open_], [review.feedback for review in open_])
            for review, text in zip(open_, texts, strict=True):
                review.text, review.parsed = text, parse(text)
                review.attempts += 1
                move(review, "TEACHER")
                if review.parsed is not None:
                    move(review, "PARSED")
                elif review.attempts >= PARSE_ATTEMPTS:
                    move(review, "UNPARSABLE")
                else:
                    review.objections.append(unreadable(text))
            readable = [review for review in open_ if review.state == "PARSED"]
            faults: list[str | None] = [None] * len(readable)
            if inspect is not None and readable:
                parsed = [review.parsed for review in readable if review.parsed is not None]
                faults = inspect([review.item for review in readable], parsed)
            for review, fault in zip(readable, faults, strict=True):
                move(review, "INSPECTED")
                if fault is None:
                    move(review, "ACCEPTED")
                    continue
                review.rounds, review.attempts = review.rounds + 1, 0
                review.objections.append(fault)
                move(review, "REJECTED" if review.rounds > max_rounds else "REVISE")
            open_ = [review for review in open_ if review.state in ("TEACHER", "REVISE")]
    return reviews


def _restore(
    reviews: Sequence[_Review[Item, Parsed]],
    log: ReviewLog,
    parse: Callable[[str], Parsed | None],
    where: str,
) -> list[_Review[Item, Parsed]]:
    """Puts finished reviews into the state in which they ended; gives the others."""
    known = log.finished()
    for review in reviews:
        if review.item.id not in known:
            continue
        review.state, review.rounds, review.text = known[review.item.id]
        review.parsed = parse(review.text) if review.state == "ACCEPTED" else None
        if review.state == "ACCEPTED" and review.parsed is None:
            raise UserError(
                f"{where} of item {review.item.id!r} that the template cannot read: it was written "
                "with another template; name another journal"
            )
    return [review for review in reviews if review.item.id not in known]


def build_hsft_dataset(
    problems: Sequence[MathProblem],
    teacher: TeacherClient,
    inspector: Inspector | None = None,
    max_rounds: int = 3,
    *,
    template: SolutionTemplate | None = None,
    judge: Judge = answers_equal,
    journal: Path | None = None,
) -> DataSet:
    """Rows of stage 1: the teacher's hierarchical rewriting of each reference solution.

    A text parses when it has steps, a generalisation (where the template asks for one) and an
    answer; one whose answer is wrong goes back to the teacher.

    Args:
        problems: with reference solutions and unique ids.
        teacher: writes the thoughts.
        inspector: objects; None accepts whatever parses.
        max_rounds: most revisions after objections.
        template: the student's; its prompt and the canonical text of the thought form the messages.
        judge: compares the thought's answer with the right one.
        journal: a file of all transitions. A call with the same file goes on where it stopped.

    Returns:
        Rows with `id`, `source`, `problem`, `answer`, `solution`, `messages` (user, assistant),
        `prompt`, `completion`, `trace`, `teacher`, `inspector_rounds` and `verified`.

    Raises:
        ValueError: ids that are not unique.
        UserError: the journal was written with another template.
    """
    template = template or HierarchicalTemplate()
    generalized = template.generalized
    answers = {problem.id: problem.answer for problem in problems}

    def parse(text: str) -> Trace | None:
        trace = template.parse(text)
        return None if trace_faults(trace, generalized=generalized) else trace

    def unreadable(text: str) -> str:
        faults = trace_faults(template.parse(text), generalized=generalized)
        return f"it could not be read: {', '.join(faults)}"

    def inspect(items: Sequence[MathProblem], traces: Sequence[Trace]) -> list[str | None]:
        wrong = [
            None if judge(trace.answer, answers[item.id]) else f"the answer is not {item.answer}"
            for item, trace in zip(items, traces, strict=True)
        ]
        if inspector is None:
            return wrong
        texts = [template.render(trace) for trace in traces]
        faults = inspector.solution_faults(items, texts)
        return [first or second for first, second in zip(wrong, faults, strict=True)]

    reviews = _review(
        "hsft", problems, teacher.solutions, parse, unreadable, inspect, max_rounds, journal
    )
    rows = [
        _hsft_row(review, template, teacher.name, inspector is not None)
        for review in reviews
        if review.state == "ACCEPTED"
    ]
    dropped = Counter(r.state.lower() for r in reviews if r.state != "ACCEPTED")
    return DataSet(rows, dropped)


def _hsft_row(
    review: _Review[MathProblem, Trace], template: SolutionTemplate, teacher: str, verified: bool
) -> dict[str, Any]:
    problem, trace = review.item, review.parsed
    assert trace is not None  # accepted reviews have been parsed
    prompt, completion = template.prompt(problem.problem), template.render(trace)
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return {
        "id": problem.id,
        "source": problem.source,
        "problem": problem.problem,
        "answer": problem.answer,
        "solution": problem.solution,
        "messages": [*asked, {"role": "assistant", "content": completion}],
        "prompt": prompt,
        "completion": completion,
        "trace": {
            "steps": [{"text": step.text, "key": step.key} for step in trace.steps],
            "generalized": trace.generalized,
            "answer": trace.answer,
        },
        "teacher": teacher,
        "inspector_rounds": review.rounds,
        "verified": verified,
    }


def collect_errors(
    model: ChatClient,
    problems: Sequence[MathProblem],
    judge: Judge = answers_equal,
    *,
    template: SolutionTemplate | None = None,
    params: GenerationParams | None = None,
) -> list[ErrorCase]:
    """The problems that the student answers wrongly (or not at all), with its steps (sec. 3.2).

    Args:
        model: the HSFT student.
        problems: fresh ones, not those of stage 1.
        judge: judge(student's answer, right answer); the former is None where there is none.
        template: the student's solution template.
        params: how it decodes; greedy, at most 2,048 tokens by default.
    """
    template = template or HierarchicalTemplate()
    prompts = [as_client_prompt(template.prompt(problem.problem)) for problem in problems]
    answers = model.generate(prompts, params or GenerationParams(max_tokens=2048))
    cases = []
    for problem, completion in zip(problems, answers, strict=True):
        attempt = read_solution(template, completion.text)
        if judge(attempt.answer, problem.answer):
            continue
        asked = (problem.id, problem.problem, problem.answer, problem.solution)
        cases.append(ErrorCase(*asked, attempt.steps, attempt.answer))
    return cases


def build_correction_pairs(
    cases: Sequence[ErrorCase],
    teacher: TeacherClient,
    student: ChatClient,
    inspector: Inspector | None = None,
    max_rounds: int = 3,
    *,
    template: CorrectionFormat | None = None,
    params: GenerationParams | None = None,
    journal: Path | None = None,
) -> DataSet:
    """Rows of stage 2 (sec. 3.3): teacher's against student's correction of the first error.

    Dropped are cases without steps, without an error by the teacher's account, with a location
    outside the solution, with a correction that the inspector rejects, and those that the student
    corrects right or like the teacher.

    Args:
        cases: from `collect_errors`.
        teacher: sees the reference solution.
        student: does not; the HSFT model.
        inspector: checks the teacher, and tells which corrections of the student are right.
        max_rounds: most revisions after objections.
        template: the student's (ungrounded) correction format.
        params: how the student decodes.
        journal: as in `build_hsft_dataset`.

    Returns:
        Rows with `id`, `prompt`, `chosen`, `rejected`, `error_step` (1-based), `prefix_steps`,
        `teacher` and `student`; what was dropped by reason; statistics of the completions' lengths;
        the cases with both traces.

    Raises:
        ValueError: ids that are not unique.
        UserError: the journal was written with another template.
    """
    template = template or CorrectionTemplate()
    usable = [case for case in cases if case.student_steps]
    dropped: Counter[str] = Counter(no_steps=len(cases) - len(usable))
    reviews = _review(
        "correction",
        usable,
        teacher.corrections,
        template.parse,
        lambda text: "it could not be read: it does not have the form that is asked for",
        None if inspector is None else inspector.correction_faults,
        max_rounds,
        journal,
    )
    located = _located(reviews, dropped)
    prompts = [
        as_client_prompt(template.prompt(case.problem, case.student_steps)) for case, _ in located
    ]
    answers = student.generate(prompts, params or GenerationParams(max_tokens=2048))
    claims = [template.parse(answer.text) for answer in answers]
    right = _rightly_corrected([case for case, _ in located], claims, inspector)
    rows, kept = [], []
    for place, (case, claim) in enumerate(located):
        if place in right:
            dropped["student_is_right"] += 1
            continue
        pair = template.pair(case.problem, case.student_steps, claim, claims[place])
        row = _pair_row(case, *pair) | {"teacher": teacher.name, "student": student.model_id}
        if row["chosen"].strip() == row["rejected"].strip():
            dropped["identical"] += 1
            continue
        rows.append(row)
        kept.append(replace(case, student_trace=answers[place].text))
    return DataSet(rows, +dropped, _length_statistics(rows), kept)


def _located(
    reviews: Sequence[_Review[ErrorCase, Correction]], dropped: Counter[str]
) -> list[tuple[ErrorCase, Correction]]:
    """Cases whose first error the teacher names; the others are counted in `dropped`."""
    located = []
    for review in reviews:
        claim = review.parsed
        if review.state != "ACCEPTED":
            dropped[review.state.lower()] += 1
            continue
        assert claim is not None  # accepted reviews have been parsed
        if claim.step is None:
            dropped["no_error_found"] += 1
        elif not 1 <= claim.step <= len(review.item.student_steps):
            dropped["error_out_of_range"] += 1
        else:
            located.append((review.item.with_error(claim.step, review.text), claim))
    return located


def _rightly_corrected(
    cases: Sequence[ErrorCase], claims: Sequence[Correction | None], inspector: Inspector | None
) -> set[int]:
    """Places of the cases that the student corrects to the inspector's satisfaction."""
    asked = [
        (place, case, claim)
        for place, (case, claim) in enumerate(zip(cases, claims, strict=True))
        if claim is not None and claim.step == case.first_error
    ]
    if inspector is None or not asked:
        return set()
    faults = inspector.correction_faults([case for _, case, _ in asked], [c for *_, c in asked])
    return {place for (place, *_), fault in zip(asked, faults, strict=True) if fault is None}


def _pair_row(case: ErrorCase, prompt: TextPrompt, chosen: str, rejected: str) -> dict[str, Any]:
    assert case.first_error is not None  # the teacher has named it
    return {
        "id": case.id,
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "error_step": case.first_error,
        "prefix_steps": list(case.student_steps[: case.first_error - 1]),
    }


def _length_statistics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    # Summed log-probabilities favour short completions: report how unequal the lengths are.
    if not rows:
        return {}
    chosen = [len(row["chosen"]) for row in rows]
    rejected = [len(row["rejected"]) for row in rows]
    return {
        "chosen_characters": statistics.fmean(chosen),
        "rejected_characters": statistics.fmean(rejected),
        "chosen_longer": statistics.fmean(c > r for c, r in zip(chosen, rejected, strict=True)),
    }
