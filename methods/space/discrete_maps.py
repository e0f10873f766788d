"""Navigation on maps seen through a window: route retracing and shortcut discovery (sec. 4.2).

Legend: cells are (x, y), x to the right and y down; the scorer's positions are (row, column).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ritornello.methods.space.geometry import signed_angle
from ritornello.methods.space.paths import actions_of, require_free, shortest_path
from ritornello.methods.space.walks import GridWalk

Cell = tuple[int, int]


@dataclass(frozen=True)
class DiscreteMap:
    """A map with landmarks.

    Attributes:
        rows: one string a row: "0" obstacle, "1" free, a letter a landmark, which is walkable.
        start, goal: (x, y).
        waypoints: what the shown walk passes on its way, in order.

    Raises:
        ValueError: rows of unequal length, an end that is not free, or one that cannot be reached.
    """

    rows: tuple[str, ...]
    start: Cell
    goal: Cell
    waypoints: tuple[Cell, ...] = ()

    def __post_init__(self) -> None:
        if not self.rows or len({len(row) for row in self.rows}) != 1:
            raise ValueError(f"rows must be strings of one length, got {self.rows}")
        for name, cell in (("start", self.start), ("goal", self.goal)):
            require_free(self.grid, swapped(cell), name)

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> "DiscreteMap":
        """From the published form: map, start_location, goal_location, walkthrough_waypoint_…"""
        return cls(
            tuple("".join(row) for row in info["map"]),
            _cell(info["start_location"]),
            _cell(info["goal_location"]),
            tuple(map(_cell, info.get("walkthrough_waypoint_locations", ()))),
        )

    @cached_property
    def grid(self) -> np.ndarray:
        """(rows, columns), true where one can walk."""
        return np.array([[symbol != "0" for symbol in row] for row in self.rows])

    @cached_property
    def landmarks(self) -> dict[str, Cell]:
        """Letter → cell, by letter."""
        found = {
            symbol: (x, y)
            for y, row in enumerate(self.rows)
            for x, symbol in enumerate(row)
            if symbol not in "01"
        }
        return dict(sorted(found.items()))

    @property
    def sketch(self) -> dict[str, Cell]:
        """What a map sketch must show: every landmark, and the start."""
        return self.landmarks | {"start": self.start}

    def at(self, cell: Cell) -> str:
        """The symbol of a cell; outside the map all is obstacle."""
        x, y = cell
        inside = 0 <= y < len(self.rows) and 0 <= x < len(self.rows[0])
        return self.rows[y][x] if inside else "0"

    def view(self, centre: Cell, size: int = 5) -> tuple[str, ...]:
        """The rows of the window around a cell, the agent in its middle shown as "*".

        Raises:
            ValueError: `size` is even.
        """
        if size % 2 == 0 or size < 1:
            raise ValueError(f"size of the view must be odd, got {size}")
        half = size // 2
        x, y = centre
        beside, outside = "0" * half, "0" * len(self.rows[0])
        rows = [
            f"{beside}{self.rows[row] if 0 <= row < len(self.rows) else outside}{beside}"
            for row in range(y - half, y + half + 1)
        ]
        rows = [row[x : x + size] for row in rows]
        rows[half] = f"{rows[half][:half]}*{rows[half][half + 1 :]}"
        return tuple(rows)

    def visible_landmarks(self, centre: Cell, size: int = 5) -> tuple[str, ...]:
        """Letters in the window, column by column; the agent's own cell counts."""
        half = size // 2
        span = range(-half, half + 1)
        symbols = [self.at((centre[0] + dx, centre[1] + dy)) for dx in span for dy in span]
        return tuple(symbol for symbol in symbols if symbol not in "01")

    def route(self, via: Sequence[Cell] = ()) -> list[Cell]:
        """A shortest walk from the start through `via` to the goal."""
        stops = [self.start, *via, self.goal]
        walk = [self.start]
        for begin, end in pairwise(stops):
            walk += [swapped(p) for p in shortest_path(self.grid, swapped(begin), swapped(end))[1:]]
        return walk

    @property
    def walkthrough(self) -> list[Cell]:
        """The walk that is shown, through the waypoints."""
        return self.route(self.waypoints)


def direction_from(here: Cell, facing: Cell, target: Cell, compat: bool = False) -> float:
    """Standing `here` and facing one cell: the signed angle to another, clockwise positive."""
    u = (facing[0] - here[0], facing[1] - here[1])
    v = (target[0] - here[0], target[1] - here[1])
    return signed_angle(u, v, compat)


@dataclass(frozen=True)
class MapObservation:
    """What is seen after a step: the window, and what is said about it."""

    view: tuple[str, ...]
    landmarks: tuple[str, ...]
    collided: bool
    goal: str
    at_goal: bool

    @property
    def rows(self) -> tuple[str, ...]:
        """The window with its cells joined by commas."""
        return tuple(",".join(row) for row in self.view)

    @property
    def text(self) -> str:
        """The observation in words."""
        alert = "The way was blocked and you did not move.\n" if self.collided else ""
        grid = "\n".join(self.rows)
        seen = ", ".join(self.landmarks) or "none"
        end = "You stand on the goal. Stop here." if self.at_goal else f"The goal is {self.goal}."
        return (
            f"{alert}You are in the middle of this view:\n```\n{grid}\n```\n"
            f"Landmarks in view: {seen}.\n{end}"
        )


class DiscreteMapEnv(GridWalk[MapObservation]):
    """A map that is seen through a window; one must stop within 1.5 cells of the goal.

    Args:
        world: the map.
        max_steps: actions until the walk is over.
        view: side of the window.

    Raises:
        ValueError: `view` is even.
    """

    radius = 1.5

    def __init__(self, world: DiscreteMap, *, max_steps: int = 100, view: int = 5) -> None:
        self.world, self.view = world, view
        super().__init__(world.grid, swapped(world.start), swapped(world.goal), max_steps=max_steps)

    def observe(self) -> MapObservation:
        """The window around the agent."""
        here = swapped(self.position)
        return MapObservation(
            self.world.view(here, self.view),
            self.world.visible_landmarks(here, self.view),
            self.collided,
            self.world.at(self.world.goal),
            here == self.world.goal,
        )


def walk_actions(walk: Sequence[Cell]) -> list[str]:
    """The moves that walk a sequence of neighbouring cells (x, y)."""
    return actions_of([swapped(cell) for cell in walk])


def swapped(pair: tuple[int, int]) -> tuple[int, int]:
    """(x, y) ↔ (row, column)."""
    return pair[1], pair[0]


def _cell(value: Sequence[int]) -> Cell:
    x, y = value
    return int(x), int(y)
