"""The paper form board (MPFB): which outline do the scattered pieces make? (sec. 7)"""

from collections.abc import Sequence

import numpy as np

from ritornello.methods.space.drawing import Canvas
from ritornello.methods.space.item import Difficulty, Item, Piece, Presentation, commas, pick

Cell = tuple[int, int]
Shape = tuple[Cell, ...]  # sorted (row, column), smallest row and column 0

_AREAS = {"easy": (9, 11), "medium": (12, 15), "hard": (16, 20)}
_PIECES = {"easy": 3, "medium": 4, "hard": 5}


def form_board(
    rng: np.random.Generator, difficulty: Difficulty, presentation: Presentation, *, size: int = 160
) -> Item:
    """Pieces of a polyomino, turned but not flipped, and four outlines of the same area."""
    low, high = _AREAS[difficulty]
    while True:
        outline = random_shape(rng, int(rng.integers(low, high + 1)))
        pieces = [pick(rng, turns(piece)) for piece in cut(rng, outline, _PIECES[difficulty])]
        wrong: list[Shape] = []
        for _ in range(40):
            other = pick(rng, turns(_altered(rng, outline)))
            known = [turn for shape in (outline, *wrong) for turn in turns(shape)]
            if other not in known and not covers(other, pieces):
                wrong.append(other)
            if len(wrong) == 3:
                break
        if len(wrong) == 3 and covers(outline, pieces):
            break
    shapes = [outline, *wrong]
    question = (
        "Which outline can be filled exactly by all pieces? They may be turned but not flipped."
    )
    shown: tuple[Piece, ...]
    if presentation == "text":
        shown = ("\n\n".join(map(_text, pieces)),)
        options: tuple[Piece, ...] = tuple(map(_text, shapes))
    else:
        shown = tuple(_picture(piece, size) for piece in pieces)
        options = tuple(_picture(shape, size) for shape in shapes)
    return Item((*shown, question), options, {"pieces": pieces, "outlines": shapes})


def normalised(cells: Sequence[Cell]) -> Shape:
    """The cells as a shape: shifted to row 0 and column 0, and sorted."""
    top, left = min(r for r, _ in cells), min(c for _, c in cells)
    return tuple(sorted((r - top, c - left) for r, c in cells))


def turns(shape: Shape) -> list[Shape]:
    """The distinct rotations of a shape."""
    found = [shape]
    for _ in range(3):
        found.append(normalised([(c, -r) for r, c in found[-1]]))
    return sorted(set(found))


def random_shape(rng: np.random.Generator, area: int) -> Shape:
    """A connected shape without holes to speak of, grown cell by cell; compact ones preferred."""
    cells: list[Cell] = [(0, 0)]
    while len(cells) < area:
        border = sorted({n for cell in cells for n in _neighbours(cell)} - set(cells))
        weights = np.array([sum(n in cells for n in _neighbours(b)) ** 2 for b in border], float)
        cells.append(border[int(rng.choice(len(border), p=weights / weights.sum()))])
    return normalised(cells)


def cut(rng: np.random.Generator, outline: Shape, number: int) -> list[Shape]:
    """Connected pieces that make up a shape."""
    seeds = [outline[i] for i in rng.choice(len(outline), number, replace=False)]
    owner = {cell: piece for piece, cell in enumerate(seeds)}
    while len(owner) < len(outline):
        ways = [
            (cell, owner[near])
            for cell in outline
            if cell not in owner
            for near in _neighbours(cell)
            if near in owner
        ]
        cell, piece = pick(rng, ways)
        owner[cell] = piece
    return [normalised([c for c, p in owner.items() if p == piece]) for piece in range(number)]


def covers(outline: Shape, pieces: Sequence[Shape]) -> bool:
    """Whether the pieces, turned at will, cover the outline exactly (exhaustive search).

    The first empty cell in reading order must be the first cell of some piece.
    """
    if sum(map(len, pieces)) != len(outline):
        return False
    ways = [turns(piece) for piece in pieces]

    def fill(empty: frozenset[Cell], left: frozenset[int]) -> bool:
        if not empty:
            return True
        row, column = min(empty)
        for piece in left:
            for turn in ways[piece]:
                down, right = row - turn[0][0], column - turn[0][1]
                placed = {(r + down, c + right) for r, c in turn}
                if placed <= empty and fill(empty - placed, left - {piece}):
                    return True
        return False

    return fill(frozenset(outline), frozenset(range(len(pieces))))


def _altered(rng: np.random.Generator, outline: Shape) -> Shape:
    """The shape with one or two cells moved elsewhere on its border, still connected."""
    cells = list(outline)
    for _ in range(int(rng.integers(1, 3))):
        while True:
            gone = pick(rng, cells)
            rest = [cell for cell in cells if cell != gone]
            border = sorted({n for cell in rest for n in _neighbours(cell)} - {*rest, gone})
            if _connected(rest):
                cells = [*rest, pick(rng, border)]
                break
    return normalised(cells)


def _connected(cells: Sequence[Cell]) -> bool:
    left, border = set(cells[1:]), [cells[0]]
    while border:
        reached = [n for n in _neighbours(border.pop()) if n in left]
        left -= set(reached)
        border += reached
    return not left


def _neighbours(cell: Cell) -> list[Cell]:
    return [(cell[0] + r, cell[1] + c) for r, c in ((-1, 0), (1, 0), (0, -1), (0, 1))]


def _text(shape: Shape) -> str:
    rows, columns = (max(cell[axis] for cell in shape) + 1 for axis in (0, 1))
    return commas([[int((r, c) in shape) for c in range(columns)] for r in range(rows)])


def _picture(shape: Shape, size: int) -> np.ndarray:
    """Filled cells of one scale, no lines between them."""
    side = 8
    canvas = Canvas(size)
    for row, column in shape:
        corners = [(column, row), (column + 1, row), (column + 1, row + 1), (column, row + 1)]
        canvas.polygon([((x + 0.1) / side, (y + 0.1) / side) for x, y in corners], (60, 60, 60))
    return canvas.pixels()
