"""The report of one run: files, the HTML page, the table at the terminal."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from ritornello.common.reporting.card import Card
from ritornello.common.reporting.claims import Verdict
from ritornello.common.reporting.figures import STYLE, Figure
from ritornello.common.reporting.results import Results
from ritornello.common.runs.store import write_atomically


@dataclass
class Report:
    """Everything that is shown of a run."""

    card: Card
    profile: str
    verdicts: Sequence[Verdict]
    results: Results
    figures: Sequence[Figure]
    config: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]
    failures: Mapping[str, str]
    missing: int = 0


def template_text(name: str) -> str:
    """A file beside the templates."""
    folder = resources.files("ritornello.common.reporting")
    return folder.joinpath("templates", name).read_text(encoding="utf-8")


def template_environment() -> jinja2.Environment:
    """Templates of this package; whatever they show is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(template_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = format_number
    environment.filters["interval"] = format_interval
    environment.filters["strip"] = strip
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1, ensure_ascii=False)
    return environment


def format_number(value: float | None) -> str:
    """Three or four significant digits, a dash for what is not there."""
    if value is None:
        return "–"
    return f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"


def format_interval(verdict: Verdict) -> str:
    """`0.61 [0.55, 0.68]`, or a dash."""
    if verdict.estimate is None:
        return "–"
    low, high = format_number(verdict.low), format_number(verdict.high)
    return f"{format_number(verdict.estimate)} [{low}, {high}]"


@dataclass(frozen=True)
class Strip:
    """An interval over the claimed range, drawn to one scale; all in per cent of the width."""

    claimed: tuple[float, float]
    interval: tuple[float, float]
    estimate: float


def strip(verdict: Verdict) -> Strip | None:
    """Where the parts of a claim's picture lie; None for a claim without an interval."""
    if verdict.estimate is None or verdict.low is None or verdict.high is None:
        return None
    ends = (verdict.claimed_low, verdict.claimed_high)
    if ends == (None, None):
        return None
    shown = [verdict.low, verdict.high, *(e for e in ends if e is not None)]
    first, last = min(shown), max(shown)
    pad = 0.15 * (last - first) or 1.0

    def place(value: float) -> float:
        return round(100 * (value - first + pad) / (last - first + 2 * pad), 2)

    def span(low: float, high: float) -> tuple[float, float]:
        return low, round(high - low, 2)

    return Strip(
        claimed=span(
            0.0 if ends[0] is None else place(ends[0]), 100.0 if ends[1] is None else place(ends[1])
        ),
        interval=span(place(verdict.low), place(verdict.high)),
        estimate=place(verdict.estimate),
    )


def summarise(results: Results) -> list[dict[str, Any]]:
    """Mean, standard deviation and count of every metric by part, arm and unit."""
    if results.table.empty:
        return []
    groups = results.table.groupby(["part", "metric", "unit", "arm"], sort=False)["value"]
    rows = groups.agg(["mean", "std", "count"]).reset_index()
    rows["std"] = rows["std"].astype(object).where(rows["std"].notna(), None)
    return [dict(row) for row in rows.to_dict("records")]


def totals(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the cells cost together."""
    used = [r["used"] for r in records]
    return {
        "cells": len(used),
        "cpu_seconds": round(sum(u["cpu_seconds"] for u in used), 1),
        "wall_seconds": round(sum(u["wall_seconds"] for u in used), 1),
        "peak_memory_mib": max((u["peak_memory_mib"] for u in used), default=0.0),
    }


def provenance(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The environments, revisions and inputs behind the records, each once."""
    distinct = {json.dumps([r["revision"], r["environment"]], sort_keys=True) for r in records}
    inputs: dict[str, str] = {}
    for record in records:
        inputs |= record["inputs"]
    return {
        "code": [
            {"revision": code, "environment": machine}
            for code, machine in map(json.loads, sorted(distinct))
        ],
        "sources": sorted({r["source"] for r in records}),
        "inputs": inputs,
    }


def write_report(report: Report, directory: Path) -> Path:
    """Writes measurements.csv, verdicts.json, figures/*.png and report.html; returns the page."""
    (directory / "figures").mkdir(parents=True, exist_ok=True)
    report.results.write_csv(directory / "measurements.csv")
    write_atomically(
        directory / "verdicts.json",
        json.dumps(
            {
                "paper": report.card.slug,
                "profile": report.profile,
                "verdicts": [v.as_dict() for v in report.verdicts],
                "summary": summarise(report.results),
                "totals": totals(report.records),
                "provenance": provenance(report.records),
                "seeds": sorted({r["cell"]["seed"] for r in report.records}),
                "failures": dict(report.failures),
                "missing": report.missing,
                "figures": [{"name": f.name, "caption": f.caption} for f in report.figures],
                "config": dict(report.config),
            },
            indent=1,
            ensure_ascii=False,
        ),
    )
    pictures = []
    for figure in report.figures:
        png = render_png(figure)
        (directory / "figures" / f"{figure.name}.png").write_bytes(png)
        pictures.append((figure, base64.b64encode(png).decode()))
    page = (
        template_environment()
        .get_template("run.html.j2")
        .render(
            report=report,
            pictures=pictures,
            summary=summarise(report.results),
            totals=totals(report.records),
            provenance=provenance(report.records),
            style=template_text("style.css"),
        )
    )
    write_atomically(directory / "report.html", page)
    return directory / "report.html"


def render_png(figure: Figure) -> bytes:
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def markdown_table(verdicts: Sequence[Verdict], profile: str) -> str:
    """The claim table of a card."""
    lines = [
        f"| claim | paper | ours ({profile}) | judged, 95 % interval | claimed | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for v in verdicts:
        paper = f"{v.paper} ({v.where})" if v.where else v.paper
        ours = format_number(v.ours)
        if v.reference is not None:
            ours += f" vs {format_number(v.reference)}"
        note = f" ({v.note})" if v.note else ""
        cells = [v.statement, paper, ours, f"{v.quantity}: {format_interval(v)}", v.margin]
        cells.append(f"**{v.verdict}**{note}")
        lines.append(
            "| " + " | ".join(escape(c, quote=False).replace("|", "\\|") for c in cells) + " |"
        )
    return "\n".join(lines)
