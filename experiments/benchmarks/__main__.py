"""`make bench`: every operator and method that has a peer, one table."""

import argparse
import importlib
import json
import sys
from dataclasses import asdict
from importlib import resources
from pathlib import Path

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
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="some suites; all without")
    parser.add_argument("--outputs", default="outputs", type=Path)
    options = parser.parse_args()
    if unknown := set(options.names) - set(suites()):
        print(f"unknown benchmark {sorted(unknown)}; known: {', '.join(suites())}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    console = Console()
    measured: dict[str, list[Timing]] = {}
    for suite in options.names or suites():
        module = importlib.import_module(f"ritornello.experiments.benchmarks.{suite}")
        try:
            for benchmark in module.benchmarks():
                timing = time_pair(benchmark)
                measured.setdefault(suite, []).append(timing)
                console.print(f"{suite}: {timing.name}: {timing.ratio:.2f}×", highlight=False)
        except UserError as error:
            console.print(f"{suite}: left out: {error}", style="yellow", markup=False)
    machine = environment()
    content = {
        "environment": machine,
        "code": revision(),
        "threads": 1,
        "suites": {s: [asdict(t) for t in timings] for s, timings in measured.items()},
    }
    write_atomically(options.outputs / "bench.json", json.dumps(content, indent=1))
    console.print(_table(measured, machine["processor"]))
    return 0


def _table(measured: dict[str, list[Timing]], processor: str) -> Table:
    table = Table(title=f"peer time / our time, one thread, {processor}", title_justify="left")
    for name in (
        "suite",
        "what",
        "peer",
        "ours",
        "theirs",
        "ratio [quartiles]",
        "target",
        "repeats",
    ):
        table.add_column(name, overflow="fold")
    for suite, timings in measured.items():
        for t in timings:
            met = t.target is None or t.ratio >= t.target
            table.add_row(
                suite,
                t.name,
                t.peer_name,
                format_time(t.ours),
                format_time(t.peer),
                f"{t.ratio:.2f}× [{t.ratio_low:.2f}, {t.ratio_high:.2f}]",
                "–" if t.target is None else f"≥ {t.target:g}×",
                str(t.repeats),
                style="" if met else "yellow",
            )
    return table


if __name__ == "__main__":
    sys.exit(main())
