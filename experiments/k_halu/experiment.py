"""What the cells of K-HALU measure."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ritornello.common.chat import CachedClient, ChatClient, ContinuationScores, check_server
from ritornello.common.evaluation import Answer, Record, Sample, evaluate
from ritornello.common.evaluation.permutation import read_answer
from ritornello.common.evaluation.report import report_rows, write_report
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.k_halu.contestants import Baseline, Model, PublishedModel
from ritornello.experiments.k_halu.figures import figures
from ritornello.methods.k_halu import (
    KHaluLogLikelihood,
    KHaluSupport,
    decision_mcc,
    expected_chance,
    held_out_deltas,
    load_k_halu,
    macro_intervals,
    make_synthetic_khalu,
    multilabel_macro,
    select_top_k,
    select_within,
    set_scores,
    truncate_documents,
)
from ritornello.methods.k_halu.prompts import likelihood_context, list_prompt, numbered
from ritornello.methods.k_halu.published import identical_cells, published_items
from ritornello.methods.k_halu.tasks import require_scores, score_set

__all__ = ["Evaluation", "Published", "figures"]

_PARTS = ("set_match", "jaccard", "f1", "any_hit", "over", "under", "decisions")


def synthetic_questions(
    seed: int, language: str, *, items: Mapping[str, int], domains: int = 7
) -> list[Sample]:
    """Generated questions, so many per language."""
    return make_synthetic_khalu(items[language], seed, language, domains)


def published_questions(
    seed: int,
    language: str,
    *,
    path_or_id: str,
    split: str = "test",
    revision: str | None = None,
    limit: int | None = None,
) -> list[Sample]:
    """The benchmark's own questions, the same for every seed."""
    return load_k_halu(path_or_id, split, revision)[:limit]


@dataclass
class Evaluation(Experiment):
    """Questions asked under one protocol.

    Attributes:
        questions: (seed, language) → questions.
        client: makes the model of the arms that are a `Model`; called when it is needed.
        block: questions asked at a time; finished blocks survive a kill.
        context_tokens: cut documents so that prompts fit; only where the client has a tokenizer.
    """

    questions: Callable[[int, str], list[Sample]]
    client: Callable[[], ChatClient] | None = None
    block: int = 64
    context_tokens: int | None = None

    def prepare(self) -> None:
        # files that are not there are said before any model is asked
        if getattr(self.questions, "func", None) is published_questions:
            self.questions(0, "ko")
        check_server(self.client)

    @cached_property
    def model(self) -> ChatClient:
        if self.client is None:
            raise ValueError("this part has no client, so its arms must be baselines")
        return self.client()

    def measure(
        self, arm: Baseline | Model, cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        for language in arm.languages:
            questions = self.questions(cell.seed, language)
            task = arm.protocol(questions=self._fitted(questions, arm))
            if isinstance(arm, Model):
                if not hasattr(task, "max_tokens"):
                    require_scores(self.model)
                client: ChatClient = CachedClient(self.model, context.scratch / "answers.sqlite")
            else:
                client = arm.client(task, cell.seed)
            journal = context.scratch / f"{language}.jsonl"
            block = (arm.block if isinstance(arm, Model) else None) or self.block
            if isinstance(task, KHaluSupport):
                block = len(questions[0].choices)  # a question's prompts share their document
            records = evaluate(task, client, journal=journal, block=block)
            if isinstance(task, KHaluSupport):
                records = joined_support(questions, records)
            rows = report_rows(records, by="n_gold", total=len(questions))
            write_report(rows, context.artifacts, f"report_{language}")
            yield from _scores(questions, records, {"language": language})
            for name in ("n_unparsed", "n_refused", "n_truncated", "n_differ"):
                count = getattr(rows[0], name)
                yield Measurement(name, count, coordinates={"language": language})
            if isinstance(task, KHaluLogLikelihood) and isinstance(arm, Model):
                yield from _without_count(task, questions, records, {"language": language})

    def _fitted(self, questions: list[Sample], arm: Baseline | Model) -> list[Sample]:
        tokenizer = getattr(self.model, "tokenizer", None) if isinstance(arm, Model) else None
        if self.context_tokens is None or tokenizer is None:
            return questions
        return truncate_documents(
            questions,
            lambda s: max(list_prompt(s), likelihood_context(s) + "\n".join(numbered(s)), key=len),
            lambda text: len(tokenizer(text)["input_ids"]),
            self.context_tokens,
        )


def joined_support(questions: Sequence[Sample], records: Sequence[Record]) -> list[Record]:
    """The five yes/no answers of each question as one set of options."""
    of = defaultdict(list)
    for record in records:
        of[record.group].append(record)
    joined = []
    for sample in questions:
        members = of[sample.id]
        picked = [i for i, r in enumerate(members) if r.answers["ours"].value == [1]]
        joined.append(
            replace(
                members[0],
                sample=sample.id,
                group=None,
                answers={"ours": Answer(picked, rule="support")},
                scores={"ours": score_set(sample, picked)},
            )
        )
    return joined


def picked_sets(questions: Sequence[Sample], records: Sequence[Record], reading: str) -> list[list]:
    """What each record picks: indices, or the places of the ones of a 0/1 list."""
    sets = []
    for record in records:
        answer = read_answer(record, reading)
        value = answer.value or []
        if answer.rule == "list":
            value = [i for i, mark in enumerate(value) if mark] if set(value) <= {0, 1} else []
        sets.append([index for index in value if 0 <= index < len(questions[0].choices)])
    return sets


def _scores(
    questions: Sequence[Sample], records: Sequence[Record], where: Mapping[str, str]
) -> Iterator[Measurement]:
    """Every score over all items, and the main ones by number of answers, polarity, domain."""
    gold = [sample.gold for sample in questions]
    for part in _PARTS:
        values = [record.scores["ours"].parts[part] for record in records]
        yield _mean(part, values, where)
        if part in ("set_match", "any_hit", "f1"):
            yield from _broken_down(part, values, records, where)
    official = [r.scores.get("official", r.scores["ours"]).value for r in records]
    yield _mean("set_match_official", official, where)
    picked = picked_sets(questions, records, "ours")
    macro = multilabel_macro(gold, picked)
    intervals = macro_intervals(
        gold, picked, clusters=[sample.cluster for sample in questions], resamples=2000
    )
    for name in ("precision", "recall", "f1"):
        yield Measurement(f"official_{name}", macro[name], coordinates=where)
        for edge, value in zip(("low", "high"), intervals[name], strict=True):
            yield Measurement(f"official_{name}_{edge}", value, coordinates=where)
    items = multilabel_macro(gold, picked, "items")
    yield Measurement("f1_gap", macro["f1"] - items["f1"], coordinates=where)
    micro = multilabel_macro(gold, picked, "micro")
    yield Measurement("micro_f1", micro["f1"], coordinates=where)
    yield Measurement("mcc", decision_mcc(gold, picked), coordinates=where)
    yield Measurement(
        "ties", sum(r.scores["ours"].parts["tied"] for r in records), coordinates=where
    )
    yield Measurement("chance", expected_chance([len(g) for g in gold]), coordinates=where)
    for slot in range(len(questions[0].choices)):
        share = float(np.mean([slot in chosen for chosen in picked]))
        yield Measurement("slot_share", share, coordinates={**where, "slot": slot + 1})


def _broken_down(
    part: str, values: Sequence[float], records: Sequence[Record], where: Mapping[str, str]
) -> Iterator[Measurement]:
    for name, labels in (
        ("by_count", ("n_gold",)),
        ("by_polarity", ("polarity",)),
        ("by_cell", ("domain", "polarity")),
    ):
        cells = defaultdict(list)
        for record, value in zip(records, values, strict=True):
            cells[tuple(record.labels[label] for label in labels)].append(value)
        for key in sorted(cells):
            place = {**where, **dict(zip(labels, key, strict=True))}
            yield _mean(f"{part}_{name}", cells[key], place)


def _without_count(
    task: KHaluLogLikelihood,
    questions: Sequence[Sample],
    records: Sequence[Record],
    where: Mapping[str, str],
) -> Iterator[Measurement]:
    """Protocol C and other units of length from the likelihoods of protocol A; nothing is asked."""
    asked = [(s, r.response) for s, r in zip(questions, records, strict=True)]
    scores = [_normalised(task, sample, response) for sample, response in asked]
    gold = [sample.gold for sample in questions]
    known = [record.scores["ours"].parts for record in records]
    deltas = held_out_deltas(scores, gold, [sample.cluster for sample in questions])
    ones = [1.0] * len(scores[0])
    found = [
        set_scores(right, select_within(row, ones, delta))
        for row, right, delta in zip(scores, gold, deltas, strict=True)
    ]
    for part in _PARTS:
        yield _mean(f"threshold_{part}", [s[part] for s in found], where)
    for part in ("set_match", "any_hit"):
        values = [s[part] for s in found]
        for n in sorted({len(right) for right in gold}):
            chosen = [v for v, right in zip(values, gold, strict=True) if len(right) == n]
            yield _mean(f"threshold_{part}_by_count", chosen, {**where, "n_gold": n})
    gains = [a["set_match"] - c["set_match"] for a, c in zip(known, found, strict=True)]
    yield _mean("count_gain", gains, where)
    for unit in ("char", "byte", "token", None):
        other = KHaluLogLikelihood(questions, normalise=unit)
        values = [
            set_scores(
                sample.gold,
                select_top_k(response.total, other.lengths(sample, response), len(sample.gold)),
            )["set_match"]
            for sample, response in asked
        ]
        yield _mean("set_match_by_unit", values, {**where, "unit": unit or "none"})


def _normalised(
    task: KHaluLogLikelihood, sample: Sample, response: ContinuationScores
) -> list[float]:
    lengths = task.lengths(sample, response)
    return [ll / n for ll, n in zip(response.total, lengths, strict=True)]


def _mean(metric: str, values: Sequence[float], where: Mapping[str, object]) -> Measurement:
    return Measurement(
        metric,
        float(np.mean(values)),
        samples=values,
        coordinates=dict(where),
    )


@dataclass
class Published(Experiment):
    """The published per-item results of API models, read as they are."""

    reference: str

    def measure(
        self, arm: PublishedModel, cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        yield _mean("accuracy", published_items(arm.name).tolist(), {})
        for n in (1, 2, 3):
            items = published_items(arm.name, n_gold=n).tolist()
            yield _mean("accuracy_by_count", items, {"n_gold": n})
        for polarity in ("faithful", "hallucinated"):
            for domain in "cehimst":
                items = published_items(arm.name, polarity=polarity, domain=domain).tolist()
                yield _mean("accuracy_by_cell", items, {"polarity": polarity, "domain": domain})
        yield Measurement("identical_cells", identical_cells(arm.name, self.reference))
