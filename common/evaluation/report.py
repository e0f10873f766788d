"""From records to the rows of a report: both readings, intervals, chance, what went wrong."""

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ritornello.common.chat.protocol import ErrorBudgetExceeded
from ritornello.common.evaluation.permutation import read_answer, read_score
from ritornello.common.evaluation.sample import Record
from ritornello.common.runs.experiment import Measurement
from ritornello.common.runs.store import write_atomically
from ritornello.common.statistics.evaluation import cluster_bootstrap, macro_mean

MAX_ERROR_SHARE = 0.02


@dataclass(frozen=True)
class ReportRow:
    """One node of a report.

    Attributes:
        node: the labels' values, "all" for the whole; "macro" for the mean over nodes.
        weighting: what was averaged: "micro" (questions) or "macro" (nodes).
        n, n_total: questions finished, and questions there are.
        n_counted: questions with a right answer that were answered or refused.
        n_unparsed, n_refused, n_truncated, n_error: by status, in our reading.
        ours, low, high: mean score in our reading, with its 95 % interval (clusters resampled).
        official: mean score as the paper's code reads the answers.
        n_differ: answers that the two readings score differently.
        chance: what guessing scores.
        published, source: the paper's figure and where it stands.
    """

    node: str
    weighting: str
    n: int
    n_total: int
    n_counted: int
    n_unparsed: int
    n_refused: int
    n_truncated: int
    n_error: int
    ours: float
    low: float
    high: float
    official: float
    n_differ: int
    chance: float | None = None
    published: float | None = None
    source: str = ""


def report_rows(
    records: Sequence[Record],
    *,
    by: str | None = None,
    total: int | None = None,
    chance: Mapping[str, float] | None = None,
    published: Mapping[str, tuple[float, str]] | None = None,
    max_error_share: float = MAX_ERROR_SHARE,
    seed: int = 0,
) -> list[ReportRow]:
    """The whole, and with `by` one row per value of that label and their macro mean.

    Args:
        records: of one task and model; some questions may be missing.
        by: a label of the samples.
        total: how many questions the task has; default: as many as there are records.
        chance, published: by node.
        max_error_share: with more questions unanswered there is no score.
        seed: of the bootstrap.

    Raises:
        ErrorBudgetExceeded: too many requests failed.
        ValueError: no record, or one without the label.
    """
    if not records:
        raise ValueError("records must hold at least one record")
    errors = sum(not record.final for record in records)
    if errors > max_error_share * len(records):
        raise ErrorBudgetExceeded(
            f"{errors} of {len(records)} questions got no answer, more than the tolerated share "
            f"of {max_error_share:g}; run again to ask them once more"
        )
    chance, published = chance or {}, published or {}
    nodes: dict[str, list[Record]] = {"all": list(records)}
    if by is not None:
        parts: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            if by not in record.labels:
                raise ValueError(f"sample {record.sample} has no label {by!r}")
            parts[str(record.labels[by])].append(record)
        nodes |= {f"{by}={value}": parts[value] for value in sorted(parts)}
    rows = []
    for node, members in nodes.items():
        of = total if node == "all" and total is not None else len(members)
        rows.append(_row(node, members, of, chance.get(node), published.get(node), seed))
    if by is not None:
        rows.append(_macro(rows, list(nodes.values())[1:]))
    return rows


def measurements(
    records: Sequence[Record], *, metric: str = "accuracy", **coordinates: Any
) -> Iterator[Measurement]:
    """A run's figures: the mean score with its samples, the official one, and what went wrong.

    Questions without an answer (errors) keep their place among the samples and count 0 there, so
    that arms stay paired; more than 2 % of them raise.

    Raises:
        ErrorBudgetExceeded: too many requests failed.
    """
    row = report_rows(records)[0]
    for name, reading in ((metric, "ours"), (f"{metric}_official", "official")):
        values = [read_score(record, reading).value for record in records]
        yield Measurement(name, sum(values) / len(values), samples=values, coordinates=coordinates)
    for name in ("n_unparsed", "n_refused", "n_truncated", "n_error", "n_differ"):
        yield Measurement(name, getattr(row, name), coordinates=coordinates)


def write_report(rows: Sequence[ReportRow], folder: str | Path, name: str = "report") -> Path:
    """Writes JSON, CSV and Markdown, each whole or not at all; returns the Markdown's path."""
    folder = Path(folder)
    names = [field.name for field in fields(ReportRow)]
    table = io.StringIO()
    writer = csv.DictWriter(table, names)
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_atomically(folder / f"{name}.csv", table.getvalue())
    write_atomically(folder / f"{name}.json", json.dumps([asdict(row) for row in rows], indent=1))
    write_atomically(folder / f"{name}.md", markdown(rows))
    return folder / f"{name}.md"


def markdown(rows: Sequence[ReportRow]) -> str:
    """The report as a Markdown table."""
    lines = [
        "| node | n | ours | 95 % interval | official | differ | chance | published "
        "| unparsed | refused | truncated | error |",
        "|---|" + "---:|" * 11,
    ]
    for row in rows:
        done = str(row.n) if row.n == row.n_total else f"{row.n}/{row.n_total}"
        published = "" if row.published is None else f"{row.published:.3f} ({row.source})"
        chance = "" if row.chance is None else f"{row.chance:.3f}"
        cells = (
            f"{row.node} ({row.weighting})",
            done,
            f"{row.ours:.3f}",
            f"{row.low:.3f} … {row.high:.3f}",
            f"{row.official:.3f}",
            row.n_differ,
            chance,
            published,
            row.n_unparsed,
            row.n_refused,
            row.n_truncated,
            row.n_error,
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def _row(
    node: str,
    members: Sequence[Record],
    total: int,
    chance: float | None,
    published: tuple[float, str] | None,
    seed: int,
) -> ReportRow:
    statuses = Counter(read_answer(record, "ours").status for record in members)
    counted = [record for record in members if read_score(record, "ours").counted]
    ours = [read_score(record, "ours").value for record in counted]
    official = [read_score(record, "official").value for record in counted]
    nothing = float("nan")
    mean, low, high = (nothing, nothing, nothing)
    if counted:
        clusters = [record.cluster or record.group or record.sample for record in counted]
        mean, low, high = cluster_bootstrap(ours, clusters, seed=seed)
    figure, source = published or (None, "")
    return ReportRow(
        node=node,
        weighting="micro",
        n=len(members),
        n_total=total,
        n_counted=len(counted),
        n_unparsed=statuses["unparsed"],
        n_refused=statuses["refused"],
        n_truncated=statuses["truncated"],
        n_error=statuses["error"],
        ours=mean,
        low=low,
        high=high,
        official=sum(official) / len(official) if official else nothing,
        n_differ=sum(a != b for a, b in zip(ours, official, strict=True)),
        chance=chance,
        published=figure,
        source=source,
    )


def _macro(rows: Sequence[ReportRow], nodes: Sequence[Sequence[Record]]) -> ReportRow:
    """The mean over the nodes, each with the same weight; interval ±1.96 standard errors."""
    counted = [[r for r in node if read_score(r, "ours").counted] for node in nodes]
    counted = [node for node in counted if node]
    mean, error = macro_mean(
        [[read_score(r, "ours").value for r in node] for node in counted],
        [[r.cluster or r.group or r.sample for r in node] for node in counted],
    )
    official, _ = macro_mean([[read_score(r, "official").value for r in n] for n in counted])
    whole = asdict(rows[0]) | {"node": "macro", "weighting": "macro", "chance": None}
    whole |= {"ours": mean, "low": mean - 1.96 * error, "high": mean + 1.96 * error}
    return ReportRow(**whole | {"official": official, "published": None, "source": ""})
