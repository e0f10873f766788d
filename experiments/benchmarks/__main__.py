"""`make bench`: every operator and method that has a peer, one table."""

import argparse
import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ritornello.common.errors import UserError
from ritornello.common.runs.provenance import environment, revision
from ritornello.common.runs.store import write_atomically
from ritornello.experiments.benchmarks.harness import Timing, time_pair

_INFRASTRUCTURE = {"__init__", "__main__", "harness"}


def suites() -> list[str]:
    """Names of the modules beside this one that define `benchmarks()`."""
    files = resources.files("ritornello.experiments.benchmarks").iterdir()
    names = {f.name.removesuffix(".py") for f in files if f.name.endswith(".py")}
    return sorted(names - _INFRASTRUCTURE)


def format_time(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def main() -> int:
    """Exit status: 0, 1 when a suite broke or its two sides disagree, 2 for an unknown name."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="some suites; all without")
    parser.add_argument("--outputs", default="outputs", type=Path)
    parser.add_argument("--record", action="store_true", help="keep bench.json with the code")
    options = parser.parse_args()
    kept = options.outputs / "bench.json"
    if options.record:
        return _record(kept)
    if unknown := set(options.names) - set(suites()):
        print(f"unknown benchmark {sorted(unknown)}; known: {', '.join(suites())}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    console = Console()
    broken = False
    for suite in options.names or suites():
        load_before = os.getloadavg()[0]
        timings: list[Timing] = []
        try:
            for timing in _measure(suite, console):
                timings.append(timing)
        except UserError as error:  # a peer that is not installed; what was timed before it counts
            console.print(f"{suite}: left out: {error}", style="yellow", markup=False)
            if not timings:
                continue
        except Exception:
            broken = True
            console.print(f"{suite}: {traceback.format_exc()}", style="red", markup=False)
            continue
        content = load(kept)
        content[suite] = {
            "environment": environment(),
            "code": revision(),
            "load_before": round(load_before, 1),
            "timings": [asdict(t) for t in timings],
        }
        write_atomically(kept, json.dumps(content, indent=1, sort_keys=True))
    console.print(_table(load(kept)))
    return int(broken)


def _measure(suite: str, console: Console) -> Iterator[Timing]:
    module = importlib.import_module(f"ritornello.experiments.benchmarks.{suite}")
    for benchmark in module.benchmarks():
        timing = time_pair(benchmark)
        console.print(f"{suite}: {timing.name}: {timing.ratio:.2f}×", highlight=False)
        yield timing


def load(file: Path) -> dict[str, Any]:
    """What was timed, by suite; empty where nothing was."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _cells(t: Timing) -> list[str]:
    return [
        t.name,
        t.peer_name,
        format_time(t.ours),
        format_time(t.peer),
        f"{t.ratio:.2f}× [{t.ratio_low:.2f}, {t.ratio_high:.2f}]",
        "–" if t.target is None else f"≥ {t.target:g}×",
        str(t.repeats),
    ]


_COLUMNS = ("what", "peer", "ours", "theirs", "ratio [quartiles]", "target", "repeats")


def _missed(t: Timing) -> bool:
    return t.target is not None and t.ratio < t.target


def _table(content: dict[str, Any]) -> Table:
    table = Table(title="peer time / our time, one thread", title_justify="left")
    for name in ("suite", *_COLUMNS):
        table.add_column(name, overflow="fold")
    for suite, entry in content.items():
        for t in (Timing(**t) for t in entry["timings"]):
            table.add_row(suite, *_cells(t), style="yellow" if _missed(t) else "")
    return table


def _record(kept: Path) -> int:
    """Puts the suites of bench.json beside the others recorded; docs/benchmarks.md shows all."""
    timed = load(kept)
    if not timed:
        print(f"there is no {kept}: make bench comes first", file=sys.stderr)
        return 2
    folder = Path(str(resources.files("ritornello.experiments.benchmarks"))).resolve()
    content = dict(sorted((load(folder / "results.json") | timed).items()))
    write_atomically(folder / "results.json", json.dumps(content, indent=1, sort_keys=True) + "\n")
    lines = [
        "# Speed beside the best peer",
        "",
        "The peer's time over ours, both timed in turn in one process with one thread; the bracket "
        "holds the quartiles. Written by `make record-bench` after `make bench`. A target that was "
        "missed is marked. Other work on the machine (a load above 1) spoils timings.",
    ]
    for suite, entry in content.items():
        before = entry.get("load_before", "not noted")
        where = f"On {entry['environment']['processor']}; load of the machine before: {before}."
        lines += ["", f"## {suite}", "", where, ""]
        lines += ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
        for t in (Timing(**t) for t in entry["timings"]):
            what, *cells = (c.replace("|", "\\|") for c in _cells(t))
            cells[-2] += " **missed**" if _missed(t) else ""
            lines.append("| " + " | ".join((what, *cells)) + " |")
    write_atomically(folder.parents[1] / "docs" / "benchmarks.md", "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
