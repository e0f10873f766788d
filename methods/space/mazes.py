"""Maze completion (MCT): the whole maze is seen; walk to the goal and stop there (sec. 4.1)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from ritornello.methods.space.paths import MOVES, Position, distances
from ritornello.methods.space.walks import GridWalk


@dataclass(frozen=True)
class MazeObservation:
    """What is seen after a step.

    Attributes:
        rows: the maze, cells joined by commas: 1 free, 0 wall, A the agent, G the goal (on top).
        position, goal: (row, column).
        collided: whether the last move was blocked.
    """

    rows: tuple[str, ...]
    position: Position
    goal: Position
    collided: bool

    @property
    def text(self) -> str:
        """The observation in words."""
        alert = "You bumped into a wall and did not move.\n" if self.collided else ""
        grid = "\n".join(self.rows)
        return (
            f"{alert}{grid}\n0 = wall, 1 = free, A = you, G = goal. "
            f"You are at {self.position} and the goal is at {self.goal}, as (row, column)."
        )


class MazeEnv(GridWalk[MazeObservation]):
    """A maze that is seen whole; one must stop on the goal itself.

    Args:
        grid: true where one can walk.
        start, goal: (row, column).
        max_steps: actions until the walk is over.

    Raises:
        ValueError: start or goal is not free, or no path joins them.
    """

    radius = 0.0

    def __init__(
        self,
        grid: Bool[np.ndarray, "rows columns"],
        start: Position,
        goal: Position,
        *,
        max_steps: int = 250,
    ) -> None:
        super().__init__(grid, start, goal, max_steps=max_steps)

    def observe(self) -> MazeObservation:
        """The whole maze, the goal drawn over the agent."""
        cells = np.where(self.grid, "1", "0").astype("<U1")
        cells[self.position] = "A"
        cells[self.goal] = "G"
        rows = tuple(",".join(row) for row in cells.tolist())
        return MazeObservation(rows, self.position, self.goal, self.collided)


class MazeBatch:
    """Many mazes of one size stepped at once, for baselines.

    Args:
        grids: (mazes, rows, columns), true where one can walk.
        starts: (mazes, 2) rows and columns.
    """

    _MOVES = np.array([*MOVES.values()])

    def __init__(self, grids: np.ndarray, starts: np.ndarray) -> None:
        self._walls = np.pad(~np.asarray(grids, dtype=bool), ((0, 0), (1, 1), (1, 1)), "edge")
        # a frame of walls around, so that no move needs a bounds check
        self._walls[:, [0, -1], :] = True
        self._walls[:, :, [0, -1]] = True
        self._index = np.arange(len(self._walls))
        self.positions = np.array(starts)

    def step(self, moves: np.ndarray) -> np.ndarray:
        """Moves every agent (0 up, 1 down, 2 left, 3 right); returns who collided."""
        wanted = self.positions + self._MOVES[moves]
        collided = self._walls[self._index, wanted[:, 0] + 1, wanted[:, 1] + 1]
        self.positions = np.where(collided[:, None], self.positions, wanted)
        return collided


def carve_maze(rng: np.random.Generator, rows: int, columns: int) -> Bool[np.ndarray, "r c"]:
    """A perfect maze (one path between any two cells) by randomised depth-first search.

    Raises:
        ValueError: a side is even or below 3.
    """
    for name, side in (("rows", rows), ("columns", columns)):
        if side < 3 or side % 2 == 0:
            raise ValueError(f"{name} must be odd and >= 3, got {side}")
    grid = np.zeros((rows, columns), dtype=bool)
    stack = [(1, 1)]
    grid[1, 1] = True
    while stack:
        row, column = stack[-1]
        ways = [
            (down, right)
            for down, right in MOVES.values()
            if 0 < row + 2 * down < rows
            and 0 < column + 2 * right < columns
            and not grid[row + 2 * down, column + 2 * right]
        ]
        if not ways:
            stack.pop()
            continue
        down, right = ways[int(rng.integers(len(ways)))]
        grid[row + down, column + right] = True
        stack.append((row + 2 * down, column + 2 * right))
        grid[stack[-1]] = True
    return grid


def far_ends(
    rng: np.random.Generator, grid: Bool[np.ndarray, "rows columns"]
) -> tuple[Position, Position]:
    """A start and a goal at least half the maze's diameter apart."""
    free = [(int(r), int(c)) for r, c in np.argwhere(grid)]
    # in a perfect maze the farthest cell from anywhere is an end of the longest path
    first = distances(grid, free[0])
    end = np.unravel_index(first.argmax(), grid.shape)
    diameter = distances(grid, (int(end[0]), int(end[1]))).max()
    while True:
        start = free[int(rng.integers(len(free)))]
        far = np.argwhere(2 * distances(grid, start) >= diameter)
        if len(far):
            row, column = far[int(rng.integers(len(far)))]
            return start, (int(row), int(column))
