"""Walking on a grid: what mazes and maps have in common (sec. 4.1, 4.2, 4.5).

Legend: positions are (row, column).
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Bool

from ritornello.methods.space.parsing import MAZE_ACTIONS
from ritornello.methods.space.paths import (
    MOVES,
    Position,
    free_cells,
    path_metrics,
    require_free,
    shortest_path,
    strict_path_metrics,
)

Seen = TypeVar("Seen")


class GridWalk(ABC, Generic[Seen]):
    """A walk in which blocked moves count as steps and only `stop` ends it before time.

    Args:
        grid: true where one can walk.
        start, goal: (row, column).
        max_steps: actions until the walk is over.

    Attributes:
        radius: how far from the goal, as the crow flies, one may stop.
        path: every position so far, the start first.

    Raises:
        ValueError: start or goal is not free, no path joins them, or `max_steps` < 1.
    """

    actions = MAZE_ACTIONS
    radius: float

    def __init__(
        self,
        grid: Bool[np.ndarray, "rows columns"],
        start: Position,
        goal: Position,
        *,
        max_steps: int,
    ) -> None:
        self.grid = free_cells(grid)
        if max_steps < 1:
            raise ValueError(f"max_steps must be >= 1, got {max_steps}")
        require_free(self.grid, start, "start")
        require_free(self.grid, goal, "goal")
        self.start, self.goal = (int(start[0]), int(start[1])), (int(goal[0]), int(goal[1]))
        self.shortest = shortest_path(self.grid, self.start, self.goal)
        self.max_steps = max_steps
        self.reset()

    @abstractmethod
    def observe(self) -> Seen:
        """What is seen now."""

    def reset(self, rng: np.random.Generator | None = None) -> Seen:
        """Back to the start; nothing is random here."""
        self.path = [self.start]
        self.steps = 0
        self.stopped = self.collided = False
        return self.observe()

    @property
    def position(self) -> Position:
        """Where the walker stands."""
        return self.path[-1]

    @property
    def done(self) -> bool:
        """Whether the walk is over."""
        return self.stopped or self.steps >= self.max_steps

    def step(self, action: str) -> tuple[Seen, bool, dict[str, object]]:
        """One action: up, down, left, right or stop.

        Returns:
            The observation, whether the walk is over, and the number of steps and collisions.

        Raises:
            ValueError: another action, or the walk is over.
        """
        if action not in self.actions:
            raise ValueError(f"action must be one of {list(self.actions)}, got {action!r}")
        if self.done:
            raise ValueError("the walk is over: reset before another step")
        self.collided = False
        if action == "stop":
            self.stopped = True
        else:
            self.steps += 1
            free = self.is_free(action)
            down, right = MOVES[action] if free else (0, 0)
            self.collided = not free
            self.path.append((self.position[0] + down, self.position[1] + right))
        info: dict[str, object] = {
            "steps": self.steps,
            "collided": self.collided,
            "stopped": self.stopped,
        }
        return self.observe(), self.done, info

    def is_free(self, action: str) -> bool:
        """Whether a move leads onto a free cell from here."""
        row, column = self.position[0] + MOVES[action][0], self.position[1] + MOVES[action][1]
        inside = 0 <= row < self.grid.shape[0] and 0 <= column < self.grid.shape[1]
        return inside and bool(self.grid[row, column])

    def metrics(self) -> dict[str, float]:
        """The published score of the walk, the strict one beside it, and its number of steps."""
        ends = self.shortest[0], self.shortest[-1]
        walk = self.path, self.grid, self.stopped, self.radius
        strict = strict_path_metrics(*ends, *walk)
        named = {f"strict_{name}": value for name, value in strict.items() if name != "valid_path"}
        counts = {"steps": float(len(self.path) - 1), "stopped": float(self.stopped)}
        return path_metrics(self.shortest, *walk) | named | counts
