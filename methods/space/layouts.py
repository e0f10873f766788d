"""Large-scale tasks: worlds to walk through, and questions about their layout (sec. 7)."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ritornello.methods.space.discrete_maps import (
    Cell,
    DiscreteMap,
    MapObservation,
    direction_from,
    swapped,
)
from ritornello.methods.space.drawing import RED, Canvas, map_picture
from ritornello.methods.space.geometry import spread_angles
from ritornello.methods.space.item import Difficulty, Item, Piece, Presentation, commas, pick
from ritornello.methods.space.mazes import carve_maze
from ritornello.methods.space.paths import MOVES, distances

_SIDES = {"easy": (9, 11), "medium": (13, 15), "hard": (17, 19, 21)}
_LANDMARKS = {"easy": (4, 4), "medium": (5, 6), "hard": (7, 8)}
_LETTERS = "ABCDEFGH"


def make_world(rng: np.random.Generator, difficulty: Difficulty = "medium") -> DiscreteMap:
    """A connected map: a maze with 15-25 % of its inner walls opened, landmarks, and a detour.

    The goal is 8 to 40 steps from the start; the shown walk is at least 1.4 times as long.
    """
    while True:
        grid = _opened(rng, carve_maze(rng, *(pick(rng, _SIDES[difficulty]) for _ in range(2))))
        free = [swapped((int(r), int(c))) for r, c in np.argwhere(grid)]
        low, high = _LANDMARKS[difficulty]
        number = int(rng.integers(low, high + 1))
        chosen = [free[i] for i in rng.choice(len(free), number + 1, replace=False)]
        landmarks, start = chosen[:-1], chosen[-1]
        goal = pick(rng, landmarks)
        far = distances(grid, swapped(start))[swapped(goal)]
        if not 8 <= far <= 40:
            continue
        symbols = np.where(grid, "1", "0").astype("<U1")
        for letter, cell in zip(_LETTERS, landmarks, strict=False):
            symbols[swapped(cell)] = letter
        rows = tuple("".join(row) for row in symbols)
        for _ in range(8):
            via = tuple(pick(rng, free) for _ in range(int(rng.integers(1, 4))))
            if goal in via or start in via:
                continue
            world = DiscreteMap(rows, start, goal, via)
            if len(world.walkthrough) - 1 >= 1.4 * far:
                return world


def direction(rng: np.random.Generator, difficulty: Difficulty, presentation: Presentation) -> Item:
    """Beside one landmark, facing a second: the signed angle to a third."""
    while True:
        world, tour = _toured(rng, difficulty)
        p, q, r = rng.permutation(sorted(world.landmarks))[:3].tolist()
        places = world.landmarks
        near = [c for c in _neighbours(places[p]) if world.at(c) == "1"]
        if not near:
            continue
        here = pick(rng, near)
        angle = round(direction_from(here, places[q], places[r]))
        if not 10 <= abs(angle) <= 170:
            continue
        wanted = [-angle]
        swapped_stand = [c for c in _neighbours(places[q]) if world.at(c) == "1"]
        if swapped_stand:
            wanted.append(round(direction_from(swapped_stand[0], places[p], places[r])))
        values = spread_angles(rng, angle, wanted)
        side = {(0, 1): "above", (0, -1): "below", (1, 0): "left of", (-1, 0): "right of"}
        where = side[places[p][0] - here[0], places[p][1] - here[1]]
        question = (
            f"Stand on the cell directly {where} {p} and face {q}. By how many degrees do you "
            f"turn to face {r}? Clockwise is positive."
        )
        facts = {"world": world, "here": here, "facing": q, "target": r}
        options = tuple(f"{(value + 179) % 360 - 179} degrees" for value in values)
        return Item((*_frames(world, tour, presentation), question), options, facts)


def distance(rng: np.random.Generator, difficulty: Difficulty, presentation: Presentation) -> Item:
    """Straight-line distances from one landmark to two others, in cells."""
    while True:
        world, tour = _toured(rng, difficulty)
        p, q, r = rng.permutation(sorted(world.landmarks))[:3].tolist()
        places = world.landmarks
        right = [math.dist(places[p], places[other]) for other in (q, r)]
        walked = [
            sum(abs(a - b) for a, b in zip(places[p], places[other], strict=True))
            for other in (q, r)
        ]
        factor = pick(rng, (0.5, 0.7, 1.4, 1.7))
        pairs = [right, right[::-1], walked, [right[0] * factor, right[1]]]
        options = tuple(f"{a:.1f} and {b:.1f}" for a, b in pairs)
        if len(set(options)) < 4:
            continue
        question = f"How far are {q} and {r} from {p}, in this order, in cells in a straight line?"
        facts = {"world": world, "from": p, "to": (q, r)}
        return Item((*_frames(world, tour, presentation), question), options, facts)


def map_sketching(
    rng: np.random.Generator, difficulty: Difficulty, presentation: Presentation
) -> Item:
    """Which sketch shows start and landmarks where they are? Scale and rotation are right."""
    while True:
        world, tour = _toured(rng, difficulty)
        right = {("S" if name == "start" else name): cell for name, cell in world.sketch.items()}
        mirror = {name: (-x, y) for name, (x, y) in right.items()}
        a, b, moved = rng.permutation(sorted(right))[:3].tolist()
        swap = right | {a: right[b], b: right[a]}
        xs, ys = zip(*right.values(), strict=True)
        room = [
            (x, y)
            for x in range(min(xs), max(xs) + 1)
            for y in range(min(ys), max(ys) + 1)
            if (x, y) not in right.values() and math.dist((x, y), right[moved]) >= 3
        ]
        if not room:
            continue
        sketches = [_cropped(s) for s in (right, mirror, swap, right | {moved: pick(rng, room)})]
        if any(s == t for i, s in enumerate(sketches) for t in sketches[:i]):
            continue
        show = sketch_text if presentation == "text" else sketch_picture
        question = "Which sketch shows where the start (S) and the landmarks lie?"
        return Item(
            (*_frames(world, tour, presentation), question),
            tuple(show(sketch) for sketch in sketches),
            {"world": world, "sketches": sketches},
        )


def sketch_text(sketch: dict[str, Cell]) -> str:
    """The bounding box of a sketch, 0 where there is nothing."""
    width, height = (max(cell[axis] for cell in sketch.values()) + 1 for axis in (0, 1))
    rows = [["0"] * width for _ in range(height)]
    for name, (x, y) in sketch.items():
        rows[y][x] = name
    return commas(rows)


def sketch_picture(sketch: dict[str, Cell], size: int = 192) -> np.ndarray:
    """The sketch as a picture: a named disc per object, (size, size, 3) uint8."""
    canvas = Canvas(size)
    side = max(max(cell) for cell in sketch.values()) + 1
    for name, (x, y) in sketch.items():
        canvas.disc(((x + 0.5) / side, (y + 0.5) / side), 0.4 / side, RED)
        canvas.label(((x + 0.5) / side, (y + 0.5) / side), name, 0.5 / side)
    return canvas.pixels()


def consistent_moves(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """The moves that could lead from one view to the next, by the cells which both show."""
    size = len(before)
    moves = []
    for name, (down, right) in MOVES.items():
        shared = [
            (before[r + down][c + right], after[r][c])
            for r in range(size)
            for c in range(size)
            if 0 <= r + down < size and 0 <= c + right < size
        ]
        if all(a == b or "*" in (a, b) for a, b in shared):
            moves.append(name)
    half = size // 2
    # one walks onto free cells only
    return [m for m in moves if before[half + MOVES[m][0]][half + MOVES[m][1]] != "0"]


def walk_frames(
    world: DiscreteMap, walk: Sequence[Cell], presentation: Presentation
) -> list[Piece]:
    """What is seen along a walk: bare views, one a step."""
    views = [world.view(cell) for cell in walk]
    if presentation == "text":
        return [commas(view) for view in views]
    return [map_picture(MapObservation(view, (), False, "", False), px=24) for view in views]


def _toured(rng: np.random.Generator, difficulty: Difficulty) -> tuple[DiscreteMap, list[Cell]]:
    """A world and a walk past all landmarks that can be put together from its views alone."""
    while True:
        world = make_world(rng, difficulty)
        left = set(world.landmarks.values()) - {world.goal}
        order, here = [], world.start
        while left:
            steps = distances(world.grid, swapped(here))
            here = min(left, key=lambda cell: (steps[swapped(cell)], cell))
            order.append(here)
            left.remove(here)
        tour = world.route(order)
        views = [world.view(cell) for cell in tour]
        pairs = pairwise(views)
        if all(len(consistent_moves(a, b)) == 1 for a, b in pairs):
            return world, tour


def _frames(world: DiscreteMap, tour: list[Cell], presentation: Presentation) -> tuple[Piece, ...]:
    frames = walk_frames(world, tour, presentation)
    if presentation == "text":
        return ("\n\n".join(map(str, frames)),)
    return tuple(frames)


def _opened(rng: np.random.Generator, grid: np.ndarray) -> np.ndarray:
    """The maze with some of the walls between two passages taken away."""
    rows, columns = grid.shape
    walls = [
        (r, c)
        for r in range(1, rows - 1)
        for c in range(1, columns - 1)
        if not grid[r, c] and (r % 2) != (c % 2)
    ]
    number = round(len(walls) * rng.uniform(0.15, 0.25))
    for index in rng.choice(len(walls), number, replace=False):
        grid[walls[index]] = True
    return grid


def _neighbours(cell: Cell) -> list[Cell]:
    return [(cell[0] + right, cell[1] + down) for down, right in MOVES.values()]


def _cropped(sketch: dict[str, Cell]) -> dict[str, Cell]:
    left = min(x for x, _ in sketch.values())
    top = min(y for _, y in sketch.values())
    return {name: (x - left, y - top) for name, (x, y) in sorted(sketch.items())}
