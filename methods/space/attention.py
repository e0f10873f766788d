"""Boards to search, to remember and to add: SAtt, CBTT and SAdd (sec. 7)."""

import numpy as np

from ritornello.methods.space.drawing import (
    BLACK,
    BLUE,
    GREY,
    RED,
    WHITE,
    YELLOW,
    Canvas,
    cells_picture,
    marked,
)
from ritornello.methods.space.item import Difficulty, Item, Piece, Presentation, commas, pick

_SEARCH = {"easy": (4, 3), "medium": (6, 5), "hard": (8, 8)}  # side, targets
_TAPS = {"easy": (4, 4, 3), "medium": (5, 6, 5), "hard": (6, 9, 7)}  # side, blocks, taps
_ADDED = {"easy": 3, "medium": 4, "hard": 5}
_ALIKE = "pqbd"


def selective_attention(
    rng: np.random.Generator, difficulty: Difficulty, presentation: Presentation, *, size: int = 256
) -> Item:
    """SAtt: list every target among symbols that look like it."""
    side, number = _SEARCH[difficulty]
    target = pick(rng, _ALIKE)
    others = [symbol for symbol in _ALIKE if symbol != target]
    board = np.array([[pick(rng, others) for _ in range(side)] for _ in range(side)])
    places = [divmod(int(i), side) for i in rng.choice(side * side, number, replace=False)]
    for place in places:
        board[place] = target
    empty = [(r, c) for r in range(side) for c in range(side) if board[r, c] != target]
    extra, other = (empty[i] for i in rng.choice(len(empty), 2, replace=False))
    gone, replaced = (places[i] for i in rng.choice(number, 2, replace=False))
    answers = [
        places,
        [p for p in places if p != gone],
        [*places, extra],
        [other if p == replaced else p for p in places],
    ]
    shown = commas(board.tolist()) if presentation == "text" else _letters(board, size)
    question = f"Where is every {target}? As (row, column), counted from 1."
    options = tuple(
        " ".join(f"({r + 1}, {c + 1})" for r, c in sorted(answer)) for answer in answers
    )
    return Item((shown, question), options, {"board": board, "target": target})


def _letters(board: np.ndarray, size: int) -> np.ndarray:
    canvas, side = Canvas(size), len(board)
    for (row, column), symbol in np.ndenumerate(board):
        canvas.label(((column + 0.5) / side, (row + 0.5) / side), str(symbol), 0.8 / side)
    return canvas.pixels()


def block_tapping(
    rng: np.random.Generator, difficulty: Difficulty, presentation: Presentation, *, px: int = 28
) -> Item:
    """CBTT: blocks are tapped one after the other; in which order, by the numbers shown last?"""
    side, number, taps = _TAPS[difficulty]
    blocks = [divmod(int(i), side) for i in rng.choice(side * side, number, replace=False)]
    labels = [int(label) + 1 for label in rng.permutation(number)]
    order = [int(i) for i in rng.choice(number, taps, replace=False)]
    swaps = [int(i) for i in rng.choice(taps - 1, 2, replace=False)]
    orders = [order, *(_exchanged(order, i) for i in swaps), order[::-1]]
    frames: list[Piece] = []
    for tapped in order:
        board = np.zeros((side, side), dtype=int)
        for index, place in enumerate(blocks):
            board[place] = 2 if index == tapped else 1
        frames.append(commas(board.tolist()) if presentation == "text" else _blocks(board, px))
    numbered = np.zeros((side, side), dtype=int)
    for label, place in zip(labels, blocks, strict=True):
        numbered[place] = label
    if presentation == "text":
        frames = ["\n\n".join(map(str, frames)), commas(numbered.tolist())]
    else:
        frames.append(_blocks(numbered, px, numbers=True))
    options = tuple(", ".join(str(labels[i]) for i in shown) for shown in orders)
    question = "In which order were the blocks tapped, by the numbers in the last frame?"
    return Item((*frames, question), options, {"order": [labels[i] for i in order]})


def _exchanged(order: list[int], place: int) -> list[int]:
    changed = list(order)
    changed[place], changed[place + 1] = order[place + 1], order[place]
    return changed


def _blocks(board: np.ndarray, px: int, *, numbers: bool = False) -> np.ndarray:
    colours = np.array([BLACK, BLUE, YELLOW])
    cells = colours[np.minimum(board, 1) if numbers else board]
    picture = cells_picture(cells, px, lines=True)
    if not numbers:
        return picture
    places = np.argwhere(board > 0).tolist()
    marks = [
        (((c + 0.5) * px, (r + 0.5) * px), 0.45 * px, YELLOW, str(board[r, c])) for r, c in places
    ]
    return marked(picture, marks)


def spatial_addition(
    rng: np.random.Generator, difficulty: Difficulty, presentation: Presentation, *, px: int = 28
) -> Item:
    """SAdd: red is ignored; blue in one grid stays blue, blue in both becomes white."""
    side = _ADDED[difficulty]
    while True:
        # 0 nothing, 1 blue, 2 red
        first, second = rng.choice(3, size=(2, side, side), p=[0.5, 0.35, 0.15])
        both = (first == 1) & (second == 1)
        single = (first == 1) ^ (second == 1)
        red = (first == 2) | (second == 2)
        if both.any() and single.any() and red.any():
            break
    right = np.where(both, 3, np.where(single, 1, 0))  # 3 white
    wrong = []
    for index in rng.permutation(side * side)[:3]:
        changed = right.copy()
        place = divmod(int(index), side)
        changed[place] = pick(rng, [value for value in (0, 1, 3) if value != right[place]])
        wrong.append(changed)
    grids = [first, second, right, *wrong]
    pieces: list[Piece]
    if presentation == "text":
        pieces = [_marks(grid) for grid in grids]
        shown: tuple[Piece, ...] = (f"{pieces[0]}\n\n{pieces[1]}",)
    else:
        pieces = [_squares(grid, px) for grid in grids]
        shown = tuple(pieces[:2])
    question = (
        "Add the two grids: red is ignored, blue in exactly one grid stays blue, blue in both "
        "becomes white, all else is empty. Which grid is the sum?"
    )
    facts = {"grids": (first, second), "sum": right}
    return Item((*shown, question), tuple(pieces[2:]), facts)


def _marks(grid: np.ndarray) -> str:
    return commas([["0BRW"[value] for value in row] for row in grid.tolist()])


def _squares(grid: np.ndarray, px: int) -> np.ndarray:
    colours = np.array([GREY, BLUE, RED, WHITE])
    return cells_picture(colours[grid], px, lines=True)
