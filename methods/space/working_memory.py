"""Cambridge spatial working memory (CSWM): find the treasures, remember where they were (sec. 4.4).

The boxes' labels are drawn anew after every step, so only places carry information.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal

import numpy as np

from ritornello.methods.space.paths import Position

STEP_LIMITS = {3: 8, 4: 12, 5: 18, 6: 25, 7: 36}
Memory = Literal["none", "found", "full"]


@dataclass(frozen=True)
class BoxObservation:
    """What is seen after a step.

    Attributes:
        boxes: (row, column) of every box.
        labels: of every box, from 0; that of a box just found empty of its treasure is hidden.
        found: the box whose treasure was just collected, or None.
        collected: treasures so far.
        shape: rows and columns of the board.
    """

    boxes: tuple[Position, ...]
    labels: tuple[int, ...]
    found: int | None
    collected: int
    shape: tuple[int, int]

    @property
    def rows(self) -> tuple[str, ...]:
        """The board, cells joined by commas: labels from 1, T the treasure just found, else 0."""
        cells = [["0"] * self.shape[1] for _ in range(self.shape[0])]
        for box, (row, column) in enumerate(self.boxes):
            cells[row][column] = "T" if box == self.found else str(self.labels[box] + 1)
        return tuple(",".join(row) for row in cells)

    @property
    def text(self) -> str:
        """The observation in words."""
        grid = "\n".join(self.rows)
        return f"{grid}\nTreasures collected: {self.collected} / {len(self.boxes)}"


class WorkingMemoryEnv:
    """Boxes that hold one treasure after another, each box once.

    Args:
        boxes: (row, column) of every box.
        treasures: the hidden order in which boxes hold the treasure: a permutation of the boxes.
        shape: rows and columns of the board.
        max_steps: by default what the benchmark allows for 3 to 7 boxes.

    Raises:
        ValueError: `treasures` is no permutation, boxes coincide or lie outside, or another number
            of boxes without `max_steps`.
    """

    def __init__(
        self,
        boxes: Sequence[Position],
        treasures: Sequence[int],
        *,
        shape: tuple[int, int] = (8, 8),
        max_steps: int | None = None,
    ) -> None:
        n = len(boxes)
        if sorted(treasures) != list(range(n)):
            raise ValueError(f"treasures must be a permutation of 0..{n - 1}, got {treasures}")
        inside = all(0 <= r < shape[0] and 0 <= c < shape[1] for r, c in boxes)
        if len(set(map(tuple, boxes))) != n or not inside:
            raise ValueError(f"boxes must be distinct cells of a {shape} board, got {boxes}")
        self.boxes = tuple((int(r), int(c)) for r, c in boxes)
        self.treasures = tuple(treasures)
        self.shape = shape
        self.max_steps = step_limit(n) if max_steps is None else max_steps
        self.reset(np.random.default_rng(0))

    def reset(self, rng: np.random.Generator) -> BoxObservation:
        """Closes all boxes and draws labels from `rng`, which later steps use as well."""
        self._rng = rng
        self.opened: list[int] = []
        self.collected = 0
        self.found: int | None = None
        self._draw_labels()
        return self.observe()

    @property
    def steps(self) -> int:
        """Boxes opened so far."""
        return len(self.opened)

    @property
    def done(self) -> bool:
        """Whether all treasures are found or the steps used up."""
        return self.collected == len(self.boxes) or self.steps >= self.max_steps

    def step(self, label: int) -> tuple[BoxObservation, bool, dict[str, object]]:
        """Opens the box that shows `label` (from 0).

        Returns:
            The observation, whether the game is over, and the box, steps and treasures.

        Raises:
            ValueError: no box shows the label, or the game is over.
        """
        if label not in self.labels:
            raise ValueError(f"label must be one of {sorted(self.labels)}, got {label!r}")
        if self.done:
            raise ValueError("the game is over: reset before another step")
        box = self.labels.index(label)
        self.opened.append(box)
        self.found = box if box == self.treasures[self.collected] else None
        self.collected += self.found is not None
        self._draw_labels()
        info: dict[str, object] = {"box": box, "steps": self.steps, "collected": self.collected}
        return self.observe(), self.done, info

    def observe(self) -> BoxObservation:
        """What is seen now: boxes, their labels and the treasures."""
        return BoxObservation(self.boxes, self.labels, self.found, self.collected, self.shape)

    def metrics(self) -> dict[str, float]:
        """Success, treasures and steps, and the two kinds of memory error.

        `found_errors`: a box whose treasure is known to be gone; `search_errors`: a box already
        seen empty in the search for the present treasure.
        """
        found: set[int] = set()
        searched: set[int] = set()
        found_errors = search_errors = 0
        for box in self.opened:
            found_errors += box in found
            search_errors += box in searched
            if len(found) < len(self.boxes) and box == self.treasures[len(found)]:
                found.add(box)
                searched.clear()
            elif box not in found:
                searched.add(box)
        return {
            "success": float(self.collected == len(self.boxes)),
            "treasures": self.collected / len(self.boxes),
            "steps": float(self.steps),
            "found_errors": float(found_errors),
            "search_errors": float(search_errors),
        }

    def _draw_labels(self) -> None:
        self.labels = tuple(int(label) for label in self._rng.permutation(len(self.boxes)))


def step_limit(n: int) -> int:
    """The benchmark's number of steps for n boxes.

    Raises:
        ValueError: it states none.
    """
    if n not in STEP_LIMITS:
        raise ValueError(f"max_steps must be given unless there are 3 to 7 boxes, got {n}")
    return STEP_LIMITS[n]


def cswm_chance(n: int, max_steps: int | None = None) -> float:
    """Success of a uniform player: P(Bin(max_steps, 1/n) >= n), each step finding with 1/n.

    Raises:
        ValueError: n < 1, or n outside 3..7 without `max_steps`.
    """
    if n < 1:
        raise ValueError(f"n must be >= 1, got {n}")
    steps = step_limit(n) if max_steps is None else max_steps
    finds = range(n, steps + 1)
    return sum((comb(steps, k) * (1 / n) ** k * (1 - 1 / n) ** (steps - k) for k in finds), 0.0)


def success_probability(n: int, memory: Memory = "none", max_steps: int | None = None) -> float:
    """Exact success of a player who remembers nothing, the boxes already found, or everything.

    The number of steps is a sum over the treasures: geometric with 1/n, geometric with 1/(n - k)
    after k finds, or uniform on 1..n - k; its distribution is convolved.
    """
    steps = step_limit(n) if max_steps is None else max_steps
    total = np.zeros(steps + 1)
    total[0] = 1.0
    number = np.arange(1, steps + 1)
    for k in range(n):
        wait = np.zeros(steps + 1)
        left = n if memory == "none" else n - k
        if memory == "full":
            wait[1 : min(left, steps) + 1] = 1 / left
        elif memory in ("none", "found"):
            wait[1:] = (1 / left) * (1 - 1 / left) ** (number - 1)
        else:
            raise ValueError(f"memory must be none, found or full, got {memory!r}")
        total = np.convolve(total, wait)[: steps + 1]
    return float(total.sum())


def place_boxes(
    rng: np.random.Generator, n: int, shape: tuple[int, int] = (8, 8)
) -> list[Position]:
    """n cells of the board, no two adjacent, not even diagonally.

    Raises:
        ValueError: the board has no room.
    """
    for _ in range(200):
        boxes: list[Position] = []
        for cell in rng.permutation(shape[0] * shape[1]):
            row, column = divmod(int(cell), shape[1])
            if all(max(abs(row - r), abs(column - c)) > 1 for r, c in boxes):
                boxes.append((row, column))
            if len(boxes) == n:
                return boxes
    raise ValueError(f"shape={shape} has no room for n={n} boxes that are not adjacent")


def play_working_memory(
    n: int,
    games: int,
    memory: Memory,
    rng: np.random.Generator,
    max_steps: int | None = None,
) -> dict[str, np.ndarray]:
    """Plays many games at once, labels re-drawn after every step as in the environment.

    Returns:
        success, treasures and steps of every game, (games,) each.
    """
    if memory not in ("none", "found", "full"):
        raise ValueError(f"memory must be none, found or full, got {memory!r}")
    limit = step_limit(n) if max_steps is None else max_steps
    order = rng.random((games, n)).argsort(axis=1)
    collected = np.zeros(games, dtype=np.int64)
    steps = np.zeros(games, dtype=np.int64)
    found = np.zeros((games, n), dtype=bool)
    seen = np.zeros((games, n), dtype=bool)
    rows = np.arange(games)
    for _ in range(limit):
        playing = collected < n
        if not playing.any():
            break
        labels = rng.random((games, n))
        if memory != "none":
            labels[found] = -1.0
        if memory == "full":
            labels[seen] = -1.0
        # labels are exchangeable, so the box with the largest is a uniform one of those allowed
        box = labels.argmax(axis=1)
        steps += playing
        hit = playing & (box == order[rows, np.minimum(collected, n - 1)])
        found[rows[hit], box[hit]] = True
        seen[rows, box] = True
        seen[hit] = False
        collected += hit
    return {"success": collected == n, "treasures": collected / n, "steps": steps}
