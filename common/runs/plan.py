"""Which cells a run has."""

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ritornello.common.errors import UserError
from ritornello.common.runs.experiment import Cell, Coordinate, Experiment


@dataclass
class Part:
    """One part: what measures it, its arms by name, its seeds and its grid."""

    measure: Experiment
    arms: Mapping[str, Any]
    seeds: Sequence[int]
    grid: Mapping[str, Sequence[Coordinate]] = field(default_factory=dict)

    def cells(self, name: str) -> list[Cell]:
        """Seeds vary slowest, arms fastest: an early stop leaves whole comparisons."""
        places = [
            dict(zip(self.grid, values, strict=True))
            for values in itertools.product(*self.grid.values())
        ]
        return [
            Cell(name, arm, seed, place)
            for seed in self.seeds
            for place in places
            for arm in self.arms
        ]


@dataclass
class Plan:
    """A paper's parts in one profile."""

    paper: str
    profile: str
    parts: Mapping[str, Part]

    def cells(
        self,
        *,
        parts: Collection[str] | None = None,
        arms: Collection[str] | None = None,
        seeds: Collection[int] | None = None,
    ) -> list[Cell]:
        """All cells, or those of some parts, arms and seeds.

        Raises:
            UserError: a name that the plan does not have, a cell that it has twice, or no cell.
        """
        _check("only.parts", parts, self.parts)
        _check("only.arms", arms, {a for part in self.parts.values() for a in part.arms})
        _check("only.seeds", seeds, {s for part in self.parts.values() for s in part.seeds})
        planned = [cell for name, part in self.parts.items() for cell in part.cells(name)]
        for cell, count in Counter(map(str, planned)).items():
            if count > 1:
                raise UserError(
                    f"{cell} is planned {count} times: seeds and grids name each value once"
                )
        chosen = [
            cell
            for cell in planned
            if (parts is None or cell.part in parts)
            and (arms is None or cell.arm in arms)
            and (seeds is None or cell.seed in seeds)
        ]
        if not chosen:
            raise UserError(
                f"no cell is left by only.parts={parts}, only.arms={arms}, only.seeds={seeds}"
            )
        return chosen


def _check(key: str, chosen: Collection | None, known: Collection) -> None:
    for name in chosen or ():
        if name not in known:
            near = get_close_matches(str(name), [str(k) for k in known], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            accepted = ", ".join(sorted(map(str, known)))
            raise UserError(f"{key} has no {name!r}{hint} Accepted: {accepted}")
