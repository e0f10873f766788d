"""The tidy table of measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ritornello.common.runs.experiment import Cell, Coordinate

FIXED = ("part", "arm", "seed", "metric", "value", "unit", "aggregate", "samples")


@dataclass
class Results:
    """Everything that a run measured.

    Attributes:
        table: one row per measurement: part, arm, seed, metric, value, unit, aggregate, samples,
            then a column per coordinate (missing where a row has none).
        directory: the run directory.
    """

    table: pd.DataFrame
    directory: Path

    @classmethod
    def from_records(cls, records: Sequence[Mapping[str, Any]], directory: Path) -> "Results":
        rows = [
            {
                "part": record["cell"]["part"],
                "arm": record["cell"]["arm"],
                "seed": record["cell"]["seed"],
                **{k: m[k] for k in ("metric", "value", "unit", "aggregate", "samples")},
                **record["cell"]["coordinates"],
                **m["coordinates"],
            }
            for record in records
            for m in record["measurements"]
        ]
        table = pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(FIXED))
        return cls(table, directory)

    @property
    def coordinates(self) -> list[str]:
        """Names of the coordinate columns."""
        return [c for c in self.table.columns if c not in FIXED]

    def select(
        self,
        part: str | Sequence[str] | None = None,
        metric: str | Sequence[str] | None = None,
        arm: str | Sequence[str] | None = None,
        **coordinates: Any,
    ) -> pd.DataFrame:
        """Rows with the given part, metric, arm and coordinates (a value or a list of values)."""
        rows = self.table
        wanted = {"part": part, "metric": metric, "arm": arm, **coordinates}
        for column, value in wanted.items():
            if value is None:
                continue
            if column not in rows.columns:
                return rows.iloc[:0]
            values = value if isinstance(value, list | tuple | set) else [value]
            rows = rows[rows[column].isin(list(values))]
        return rows

    def artifacts(self, part: str, arm: str, seed: int = 0, **coordinates: Coordinate) -> Path:
        """The folder in which a cell left its arrays and pictures."""
        return self.directory / "artifacts" / Cell(part, arm, seed, coordinates).key

    def write_csv(self, path: Path) -> None:
        """Writes the table without the per-unit samples (those stay in `cells/`)."""
        self.table.drop(columns="samples").to_csv(path, index=False)
