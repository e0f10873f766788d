"""Shortest paths on grids, and how good a walked path is (success, SPL).

Legend: a grid is a (rows, columns) array, true where one can walk; a position is (row, column).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import ArrayLike

Position = tuple[int, int]

MOVES: dict[str, Position] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def free_cells(grid: ArrayLike) -> Bool[np.ndarray, "rows columns"]:
    """Where one can walk: numbers other than 0; of a map of characters all but "0".

    Raises:
        ValueError: the cells form no rectangle.
    """
    cells = np.asarray(grid)
    if cells.ndim != 2:
        raise ValueError(f"grid must have rows and columns, got shape {cells.shape}")
    return cells != "0" if cells.dtype.kind == "U" else cells.astype(bool)


def distances(
    grid: Bool[np.ndarray, "rows columns"], origin: Position
) -> Int[np.ndarray, "rows columns"]:
    """Steps from `origin` to every free cell, -1 where there is no way.

    Raises:
        ValueError: `origin` is outside the grid or not free.
    """
    require_free(grid, origin, "origin")
    # flat, within a frame of walls: no bounds to check
    free = np.pad(np.asarray(grid, dtype=bool), 1).ravel().tolist()
    width = grid.shape[1] + 2
    steps = [-1] * len(free)
    here = (origin[0] + 1) * width + origin[1] + 1
    steps[here], border = 0, [here]
    while border:
        reached = []
        for cell in border:
            for near in (cell - width, cell + width, cell - 1, cell + 1):
                if free[near] and steps[near] < 0:
                    steps[near] = steps[cell] + 1
                    reached.append(near)
        border = reached
    return np.array(steps).reshape(-1, width)[1:-1, 1:-1]


def shortest_path(
    grid: Bool[np.ndarray, "rows columns"], start: Position, goal: Position
) -> list[Position]:
    """One shortest path, both ends included; of equal ones that which prefers up, down, left.

    Raises:
        ValueError: an end is not free, or nothing leads from one to the other.
    """
    require_free(grid, start, "start")
    left = distances(grid, goal)
    if left[start] < 0:
        raise ValueError(f"no path leads from start={start} to goal={goal}")
    path = [start]
    while path[-1] != goal:
        row, column = path[-1]
        path.append(
            next(
                (row + down, column + right)
                for down, right in MOVES.values()
                if 0 <= row + down < grid.shape[0]
                and 0 <= column + right < grid.shape[1]
                and left[row + down, column + right] == left[row, column] - 1
            )
        )
    return path


def actions_of(path: Sequence[Position]) -> list[str]:
    """The moves that walk a path."""
    names = {step: name for name, step in MOVES.items()}
    return [names[r2 - r1, c2 - c1] for (r1, c1), (r2, c2) in pairwise(path)]


def valid_prefix(
    predicted: Sequence[Position], grid: Bool[np.ndarray, "rows columns"]
) -> tuple[list[Position], bool]:
    """The path up to its first impossible position, and whether it counts as valid.

    Cut before a position outside the grid or on an obstacle, and before a step longer than 1.
    A single step out of the grid cuts the path but does not make it invalid; the other two do.

    Raises:
        ValueError: a coordinate is not finite.
    """
    kept: list[Position] = []
    for row, column in predicted:
        if not (np.isfinite(row) and np.isfinite(column)):
            raise ValueError(f"predicted must hold finite coordinates, got {(row, column)}")
        if kept and _euclid(kept[-1], (row, column)) > 1:
            return kept, False
        if not (0 <= row < grid.shape[0] and 0 <= column < grid.shape[1]):
            return kept, True
        if not grid[row, column]:
            return kept, False
        kept.append((row, column))
    return kept, True


def path_metrics(
    reference: Sequence[Position],
    predicted: Sequence[Position],
    grid: Bool[np.ndarray, "rows columns"],
    stopped: bool,
    radius: float,
    *,
    compat: bool = False,
) -> dict[str, float]:
    """valid_path, success and SPL as the benchmark scores them.

    Success needs an explicit stop within `radius` of the reference's end, as the crow flies. SPL =
    success · L_ref / max(L_ref, L_pred).

    Args:
        reference: the shortest path, ends included.
        predicted: every position that was visited.
        radius: 0 in mazes, 1.5 on maps.
        compat: a reference of length 0 gives SPL 0 as in the official code (ours: 1).

    Returns:
        `valid_path`, `success`, `spl`; only where no position is valid also `softspl`, which is 0.
    """
    if not len(reference):
        raise ValueError("reference must hold at least one position")
    prefix, valid = valid_prefix(predicted, free_cells(grid))
    if not prefix:
        return dict.fromkeys(("valid_path", "success", "spl", "softspl"), 0.0)
    success = float(stopped and _euclid(prefix[-1], reference[-1]) <= radius)
    best, taken = _length(reference), _length(prefix)
    spl = success * (1.0 if best == taken == 0 and not compat else best / max(best, taken, 1e-10))
    return {"valid_path": float(valid), "success": success, "spl": spl}


def strict_path_metrics(
    start: Position,
    goal: Position,
    predicted: Sequence[Position],
    grid: Bool[np.ndarray, "rows columns"],
    stopped: bool,
    radius: float,
) -> dict[str, float]:
    """The corrected score: distances are walked, and only a valid path succeeds.

    A goal behind a wall is not reached, and what is left to the goal counts as walked in SPL, so a
    detour is not hidden by stopping before the goal itself.
    """
    grid = free_cells(grid)
    prefix, valid = valid_prefix(predicted, grid)
    whole = valid and len(prefix) == len(predicted) > 0
    left = distances(grid, goal)
    if not (whole and stopped and 0 <= left[prefix[-1]] <= radius):
        return {"valid_path": float(whole), "success": 0.0, "spl": 0.0}
    best, taken = float(left[start]), _length(prefix) + float(left[prefix[-1]])
    return {"valid_path": 1.0, "success": 1.0, "spl": best / max(best, taken) if taken else 1.0}


def require_free(grid: Bool[np.ndarray, "rows columns"], position: Position, name: str) -> None:
    """Raises ValueError unless `position` is a free cell of the grid."""
    row, column = position
    inside = 0 <= row < grid.shape[0] and 0 <= column < grid.shape[1]
    if not inside or not grid[row, column]:
        raise ValueError(
            f"{name} must be a free cell of the {grid.shape[0]} x {grid.shape[1]} grid, "
            f"got {tuple(position)}"
        )


def _euclid(a: Position, b: Position) -> float:
    return math.dist(a, b)


def _length(path: Sequence[Position]) -> float:
    return sum(_euclid(a, b) for a, b in pairwise(path))
