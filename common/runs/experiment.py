"""What an experiment is: cells, and the measurements that one cell yields."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Coordinate = int | float | str | bool


@dataclass(frozen=True)
class Cell:
    """The unit of work, progress and resume: part × arm × seed × coordinates."""

    part: str
    arm: str
    seed: int
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A name that is the same in every process, safe in a file name."""
        text = json.dumps([self.part, self.arm, self.seed, dict(self.coordinates)], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        readable = re.sub(r"[^A-Za-z0-9_.]+", "_", f"{self.part}.{self.arm}")[:60]
        return f"{readable}.{self.seed}.{digest}"

    def __str__(self) -> str:
        places = "".join(f" {k}={v}" for k, v in self.coordinates.items())
        return f"{self.part} {self.arm} seed={self.seed}{places}"


@dataclass(frozen=True)
class Measurement:
    """One figure of a cell.

    Attributes:
        metric: what was measured.
        value: the figure; the aggregate of `samples` where those are given.
        unit: of the value, for reports.
        samples: per-unit values (windows, images, prompts), in the same order in every arm.
        aggregate: how samples make the value: their `mean`, or `exp_mean`.
        coordinates: further coordinates within the cell (layer, step).
    """

    metric: str
    value: float
    unit: str = ""
    samples: Sequence[float] | None = None
    aggregate: Literal["mean", "exp_mean"] = "mean"
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)

    def as_record(self) -> dict[str, Any]:
        """Plain JSON types; checks that samples and value agree."""
        value = float(self.value)
        samples = None if self.samples is None else [float(s) for s in self.samples]
        if samples:
            mean = math.fsum(samples) / len(samples)
            expected = math.exp(mean) if self.aggregate == "exp_mean" else mean
            if not math.isclose(value, expected, rel_tol=1e-3, abs_tol=1e-6):
                raise ValueError(
                    f"{self.metric}: value {value:g} is not the {self.aggregate} "
                    f"of its {len(samples)} samples ({expected:g})"
                )
        return {
            "metric": self.metric,
            "value": value,
            "unit": self.unit,
            "samples": samples,
            "aggregate": self.aggregate,
            "coordinates": dict(self.coordinates),
        }


@dataclass
class CellContext:
    """What a cell may use beside its arm: folders, a log, a record of its inputs.

    Attributes:
        scratch: survives a kill, goes when the cell is recorded: checkpoints.
        artifacts: stays with the record: arrays and pictures that figures need.
    """

    scratch: Path
    artifacts: Path
    inputs: dict[str, str] = field(default_factory=dict)

    def log(self, step: int, **values: float) -> None:
        """Appends one line to the cell's curve, which a tracker shows."""
        line = json.dumps({"step": step, **{k: float(v) for k, v in values.items()}})
        with (self.artifacts / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def uses(self, name: str, digest: str) -> None:
        """Records the content hash of a data set or checkpoint in the cell's provenance."""
        self.inputs[name] = digest


class Experiment:
    """One part of a paper's experiment. Constructing it is cheap; work is done in the two calls."""

    def prepare(self) -> None:
        """Runs once before any cell: fetch, convert, generate; raises early what cannot work."""

    def measure(self, arm: Any, cell: Cell, context: CellContext) -> Iterable[Measurement]:
        """Measures one cell. Every random number comes from `cell.seed`."""
        raise TypeError(f"{type(self).__name__} does not define measure()")
