"""Running a task: asking, reading, scoring, and keeping what is finished."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ritornello.common.chat.journal import Journal, read_records
from ritornello.common.chat.protocol import ChatClient, Completion, GenerationParams
from ritornello.common.evaluation.sample import (
    Answer,
    Query,
    Record,
    Response,
    RunMismatchError,
    Sample,
    SampleError,
    Score,
)
from ritornello.common.evaluation.task import EpisodeTask, State, Task


def ask(client: ChatClient, queries: Sequence[Query]) -> list[Response]:
    """Sends queries in as few calls as their settings allow; responses come in order."""
    responses: dict[int, Response] = {}
    scored = [index for index, query in enumerate(queries) if query.continuations]
    if scored:
        scores = client.score_continuations(
            [queries[index].prompt for index in scored],
            [queries[index].continuations for index in scored],
        )
        responses.update(zip(scored, scores, strict=True))
    by_params: dict[GenerationParams, list[int]] = {}
    for index, query in enumerate(queries):
        if not query.continuations:
            by_params.setdefault(query.params, []).append(index)
    for params, places in by_params.items():
        completions = client.generate([queries[index].prompt for index in places], params)
        responses.update(zip(places, completions, strict=True))
    return [responses[index] for index in range(len(queries))]


def evaluate(
    task: Task, client: ChatClient, *, journal: str | Path | None = None, block: int = 256
) -> list[Record]:
    """Asks a model every question of a task.

    Args:
        task: the benchmark.
        client: the model.
        journal: a file of finished records; an existing one is continued.
        block: questions that are rendered and asked at a time.

    Returns:
        One record per sample, in the order of `task.samples()`.

    Raises:
        SampleError: two samples share an id.
        RunMismatchError: the journal is of another run.
        RunLockedError: another process writes the journal.
    """
    samples = _checked(task.samples())
    with _Book(journal, task.name, client.model_id, samples) as book:
        for start in range(0, len(samples), block):
            asked = [(sample, task.render(sample)) for sample in samples[start : start + block]]
            waiting = [(s, query) for s, query in asked if not book.knows(s, query)]
            responses = ask(client, [query for _, query in waiting])
            for (sample, query), response in zip(waiting, responses, strict=True):
                book.add(_record(task, sample, query.digest(), response))
        return [book.records[sample.id] for sample in samples]


def play(
    task: EpisodeTask[State],
    client: ChatClient,
    *,
    journal: str | Path | None = None,
    block: int = 64,
) -> list[Record]:
    """Plays every episode of a task, `block` of them at a time; otherwise like `evaluate`.

    A request that fails ends its episode with the status "error".
    """
    samples = _checked(task.samples())
    with _Book(journal, task.name, client.model_id, samples) as book:
        for start in range(0, len(samples), block):
            _play_block(task, client, samples[start : start + block], book)
        return [book.records[sample.id] for sample in samples]


def load_records(journal: str | Path) -> list[Record]:
    """The finished records of a journal, also while a run writes it; of repeated ones the last."""
    lines = read_records(journal)
    next(lines, None)
    records = (Record.from_json(line) for line in lines)
    return list({record.sample: record for record in records}.values())


def rescore(task: Task, records: Sequence[Record]) -> list[Record]:
    """Parses and scores known responses again; no model is asked.

    Raises:
        SampleError: a record's sample is no longer among the task's.
    """
    samples = {sample.id: sample for sample in task.samples()}
    for record in records:
        if record.sample not in samples:
            raise SampleError(f"{task.name} has no sample {record.sample!r}")
    return [
        _record(task, samples[record.sample], record.query, record.response) for record in records
    ]


def _play_block(
    task: EpisodeTask[State], client: ChatClient, samples: Sequence[Sample], book: "_Book"
) -> None:
    states, queries, first, replies = {}, {}, {}, {}
    for sample in samples:
        state = task.reset(sample)
        query = None if task.finished(state) else task.render(state)
        if not book.knows(sample, query):
            states[sample.id], queries[sample.id] = state, query
            first[sample.id], replies[sample.id] = query.digest() if query else "", []
    by_id = {sample.id: sample for sample in samples}
    while states:
        for name in [name for name in states if queries[name] is None]:
            sample = by_id[name]
            answers = task.answer(states.pop(name))
            scores = {reading: task.score(sample, answer) for reading, answer in answers.items()}
            book.add(_finished(sample, first[name], answers, scores, replies[name]))
        running = list(states)
        responses = ask(client, [queries[name] for name in running])
        for name, completion in zip(running, responses, strict=True):
            if not isinstance(completion, Completion):
                raise TypeError(f"{task.name}: episodes cannot score continuations")
            replies[name].append(completion.text)
            if not completion.ok:
                failed = {"ours": Answer(None, "error", completion.error or "")}
                scores = {"ours": Score(0.0, counted=False)}
                book.add(_finished(by_id[name], first[name], failed, scores, replies[name]))
                del states[name]
                continue
            state = states[name] = task.step(states[name], completion)
            queries[name] = None if task.finished(state) else task.render(state)


def _record(task: Task, sample: Sample, query: str, response: Response) -> Record:
    answers = _read(task, sample, response)
    scores = {
        name: Score(0.0, counted=False) if answer.status == "error" else task.score(sample, answer)
        for name, answer in answers.items()
    }
    return _finished(sample, query, answers, scores, response)


def _read(task: Task, sample: Sample, response: Response) -> Mapping[str, Answer]:
    if not isinstance(response, Completion):
        return task.parse(sample, response)
    if response.finish_reason == "error":
        return {"ours": Answer(None, "error", response.error or "")}
    if response.finish_reason == "content_filter":
        return {"ours": Answer(None, "refused")}
    answers = task.parse(sample, response)
    if response.finish_reason != "length":
        return answers
    return {
        name: Answer(None, "truncated") if answer.status == "unparsed" else answer
        for name, answer in answers.items()
    }


def _finished(
    sample: Sample,
    query: str,
    answers: Mapping[str, Answer],
    scores: Mapping[str, Score],
    response: Any,
) -> Record:
    return Record(
        sample.id, query, answers, scores, response, sample.group, sample.cluster, sample.labels
    )


def _checked(samples: Sequence[Sample]) -> Sequence[Sample]:
    seen: set[str] = set()
    for sample in samples:
        if sample.id in seen:
            raise SampleError(f"two samples have the id {sample.id!r}")
        seen.add(sample.id)
    return samples


class _Book:
    """Finished records, on disk where a journal is given; its first line says whose they are."""

    def __init__(
        self, path: str | Path | None, task: str, model: str, samples: Sequence[Sample]
    ) -> None:
        self.records: dict[str, Record] = {}
        self._journal = None if path is None else Journal(path)
        if self._journal is None:
            return
        ids = hashlib.blake2b("\n".join(s.id for s in samples).encode(), digest_size=8)
        head = {"task": task, "model": model, "samples": ids.hexdigest()}
        lines = self._journal.records()
        found = next(lines, None)
        if found is None:
            self._journal.append(head)
        elif found != head:
            self._journal.close()
            other = {name: found.get(name) for name in head if found.get(name) != head[name]}
            raise RunMismatchError(
                f"{path} is the journal of another run: it has {other}, this run has "
                f"{ {name: head[name] for name in other} }; give another path"
            )
        for line in lines:
            record = Record.from_json(line)
            if record.final:
                self.records[record.sample] = record

    def knows(self, sample: Sample, query: Query | None) -> bool:
        """Whether the sample is finished; raises if it was asked otherwise then."""
        record = self.records.get(sample.id)
        if record is None:
            return False
        if record.query != (query.digest() if query else ""):
            raise RunMismatchError(
                f"sample {sample.id} was asked in other words or with other settings in the "
                "journal; give another path"
            )
        return True

    def add(self, record: Record) -> None:
        self.records[record.sample] = record
        if self._journal is not None:
            self._journal.append(record.to_json())

    def __enter__(self) -> "_Book":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._journal is not None:
            self._journal.close()
