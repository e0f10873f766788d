"""What running costs: two workers against one, and importing every method against torch alone."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ritornello.common.runs import Cell, CellContext, Experiment, Measurement, Part, Plan, run
from ritornello.experiments.app import papers
from ritornello.experiments.benchmarks import Benchmark

CELLS, PRODUCTS = 16, 40


@dataclass
class Products(Experiment):
    """A cell of about a second on one core."""

    def measure(self, arm: int, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        import torch

        generator = torch.Generator().manual_seed(cell.seed)
        x = torch.randn(arm, arm, generator=generator) / arm**0.5
        y = x
        for _ in range(PRODUCTS):
            y = x @ y
        yield Measurement("norm", float(y.norm()))


def build(config: dict[str, Any]) -> Plan:
    part = Part(Products(), arms={"products": 1024}, seeds=range(CELLS))
    return Plan("umup", "small", {"products": part})


def norms(workers: int) -> list[float]:
    """Runs the cells in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(build, {}, Path(folder), workers=workers)
    return [record["measurements"][0]["value"] for record in outcome.records]


def agree(ours: list[float], peer: list[float]) -> None:
    if len(ours) != CELLS or json.dumps(ours) != json.dumps(peer):
        raise AssertionError("the number of workers changed a figure")


def python(code: str) -> None:
    """Runs `code` anew, with bytecode kept as after an installation; torch's is there already."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", code], check=True, env=kept)


def benchmarks() -> Iterator[Benchmark]:
    yield Benchmark(
        f"{CELLS} cells of a second, 2 workers and their start",
        ours=lambda: norms(2),
        peer=lambda: norms(1),
        peer_name="1 worker",
        agree=agree,
    )
    names = [p for p in papers() if not p.startswith("compose")]
    modules = ", ".join(f"ritornello.methods.{name}" for name in names)
    yield Benchmark(
        f"import of all {len(names)} methods",
        ours=lambda: python(f"import {modules}"),
        peer=lambda: python("import torch"),
        peer_name="import torch",
        target=0.8,
    )
    yield Benchmark(
        "the command's import",
        ours=lambda: python("import ritornello.experiments.command"),
        peer=lambda: python("import torch"),
        peer_name="import torch",
        target=2.0,
    )
