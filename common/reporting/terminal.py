"""What is seen while a run goes on, and at its end."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ritornello.common.reporting.claims import Verdict
from ritornello.common.reporting.page import format_interval, format_number
from ritornello.common.runs.experiment import Cell

COLOURS = {
    "reproduced": "green",
    "contradicted": "red",
    "inconclusive": "yellow",
    "not run": "bright_black",
}


def claim_table(verdicts: Sequence[Verdict], title: str) -> Table:
    """The claims with the paper's figure, ours, the interval and the verdict."""
    table = Table(title=title, title_justify="left", expand=True)
    for name, options in {
        "claim": {"ratio": 4},
        "paper": {"ratio": 3},
        "ours": {"ratio": 2},
        "judged quantity [95 % interval]": {"ratio": 4},
        "claimed": {"no_wrap": True},
        "verdict": {"no_wrap": True},
    }.items():
        table.add_column(name, **options)
    for v in verdicts:
        ours = format_number(v.ours) + (f" {v.unit}" if v.unit else "")
        if v.reference is not None:
            ours += f" vs {format_number(v.reference)}"
        quantity = f"{v.quantity}\n{format_interval(v)}"
        if v.n:
            quantity += f" (n={v.n} {v.units})"
        if v.note:
            quantity += f"\n{v.note}"
        cells = [v.statement, v.paper, ours, quantity, v.margin]
        table.add_row(*map(Text, cells), Text(v.verdict, style=COLOURS[v.verdict]))
        table.add_section()
    return table


def time_left(
    cells: Sequence[Cell], records: Sequence[dict[str, Any]], workers: int
) -> float | None:
    """Seconds to go: unfinished cells cost what finished ones of their part and arm cost."""
    by_arm: dict[tuple[str, str], list[float]] = {}
    by_part: dict[str, list[float]] = {}
    done = set()
    for record in records:
        cell, wall = record["cell"], record["used"]["wall_seconds"]
        by_arm.setdefault((cell["part"], cell["arm"]), []).append(wall)
        by_part.setdefault(cell["part"], []).append(wall)
        done.add(Cell(cell["part"], cell["arm"], cell["seed"], cell["coordinates"]).key)
    if not by_part:
        return None
    everything = [w for walls in by_part.values() for w in walls]
    total = 0.0
    for cell in cells:
        if cell.key not in done:
            known = by_arm.get((cell.part, cell.arm)) or by_part.get(cell.part) or everything
            total += sum(known) / len(known)
    return total / workers


class CellProgress:
    """A bar over cells with the time left; plain lines where there is no terminal."""

    def __init__(
        self, cells: Sequence[Cell], read: Callable[[], list[dict[str, Any]]], workers: int
    ) -> None:
        self.cells, self.read, self.workers = cells, read, workers
        self.interactive = sys.stderr.isatty()
        self.shown = -1
        self.checked = 0.0
        self.bar = Progress(
            TextColumn("measuring"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("cells"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            disable=not self.interactive,
        )

    def __enter__(self) -> "CellProgress":
        self.bar.start()
        self.task = self.bar.add_task("cells", total=len(self.cells), left="")
        self.update(force=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.update(force=True)
        self.bar.stop()

    def update(self, force: bool = False) -> None:
        if not force and self.workers > 1 and time.monotonic() - self.checked < 0.5:
            return
        self.checked = time.monotonic()
        records = self.read()
        if len(records) == self.shown:
            return
        self.shown = len(records)
        seconds = time_left(self.cells, records, self.workers)
        left = "" if seconds is None else f"about {format_seconds(seconds)} left"
        self.bar.update(self.task, completed=len(records), left=left)
        if not self.interactive:
            print(f"{len(records)}/{len(self.cells)} cells {left}".rstrip(), file=sys.stderr)


def format_seconds(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
