"""Pictures of stimuli and environments: (height, width, 3) arrays of uint8."""

import io
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ritornello.common.chat import Image
from ritornello.methods.space.discrete_maps import MapObservation
from ritornello.methods.space.mazes import MazeObservation
from ritornello.methods.space.working_memory import BoxObservation

Colour = tuple[int, int, int]

WHITE, BLACK, GREY = (255, 255, 255), (0, 0, 0), (128, 128, 128)
BLUE, YELLOW, RED = (0, 0, 255), (255, 255, 0), (255, 0, 0)
_SMOOTH = 2  # drawn this much larger, then averaged


class Canvas:
    """A square or rectangular picture with coordinates in [0, 1]² (x right, y down)."""

    def __init__(self, size: int, background: Colour = WHITE) -> None:
        from PIL import Image as Pillow
        from PIL import ImageDraw

        self.size = size
        self._image = Pillow.new("RGB", (size * _SMOOTH, size * _SMOOTH), background)
        self._draw = ImageDraw.Draw(self._image)
        self._scale = size * _SMOOTH

    def line(self, a, b, colour: Colour = BLACK, width: float = 0.012) -> None:
        """A segment from `a` to `b`; `width` as a share of the picture's side."""
        pixels = max(1, round(width * self._scale))
        self._draw.line([*self._at(a), *self._at(b)], fill=colour, width=pixels)

    def disc(self, centre, radius: float, colour: Colour) -> None:
        """A filled circle; `radius` as a share of the picture's side."""
        (x, y), r = self._at(centre), radius * self._scale
        self._draw.ellipse([x - r, y - r, x + r, y + r], fill=colour)

    def polygon(self, corners, fill: Colour, outline: Colour | None = None) -> None:
        """A filled polygon, its corners in order."""
        flat = [self._at(corner) for corner in corners]
        self._draw.polygon(flat, fill=fill, outline=outline, width=_SMOOTH)

    def label(self, centre, text: str, height: float = 0.07, colour: Colour = BLACK) -> None:
        """Text centred on a point; `height` as a share of the picture's side."""
        write(self._draw, self._at(centre), text, height * self._scale, colour)

    def pixels(self) -> np.ndarray:
        """The picture, (size, size, 3) uint8, averaged down from the larger drawing."""
        return np.array(self._image.reduce(_SMOOTH))

    def _at(self, point) -> tuple[float, float]:
        return float(point[0]) * self._scale, float(point[1]) * self._scale


def write(draw, centre: tuple[float, float], text: str, height: float, colour: Colour) -> None:
    """Text around a point, in pixels."""
    draw.text(centre, text, fill=colour, font=_font(max(6, round(height))), anchor="mm")


@lru_cache(maxsize=32)
def _font(height: int):
    from PIL import ImageFont

    return ImageFont.load_default(height)


def png(pixels: np.ndarray) -> Image:
    """A picture as a part of a message."""
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, format="PNG", compress_level=1)
    return Image(buffer.getvalue())


def cells_picture(cells: np.ndarray, px: int, *, lines: bool = False) -> np.ndarray:
    """Coloured cells, (rows, columns, 3), `px` pixels each, with white lines between on request."""
    picture = np.repeat(np.repeat(cells.astype(np.uint8), px, axis=0), px, axis=1)
    if lines:
        width = 2 if px >= 20 else 1
        for offset in range(-(width // 2), width - width // 2):
            picture[np.arange(0, picture.shape[0], px) + offset] = WHITE
            picture[:, np.arange(0, picture.shape[1], px) + offset] = WHITE
    return picture


def marked(picture: np.ndarray, marks: Sequence[tuple[tuple[float, float], float, Colour, str]]):
    """A picture with discs ((x, y) and radius in pixels, colour) and a text on each."""
    from PIL import Image as Pillow
    from PIL import ImageDraw

    image = Pillow.fromarray(picture)
    draw = ImageDraw.Draw(image)
    for (x, y), radius, colour, text in marks:
        draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour)
        if text:
            write(draw, (x, y), text, 1.3 * radius, BLACK)
    return np.array(image)


def maze_picture(seen: MazeObservation, px: int = 100) -> np.ndarray:
    """The maze (sec. 4.1): walls blue, free black, a yellow square for the agent, a red disc for
    the goal, and a grey bar below that tells of a collision."""
    symbols = np.array([row.split(",") for row in seen.rows])
    cells = np.where((symbols == "0")[..., None], BLUE, BLACK)
    picture = cells_picture(cells, px)
    row, column = seen.position
    low, high = round(0.2 * px), round(0.8 * px)
    picture[row * px + low : row * px + high, column * px + low : column * px + high] = YELLOW
    bar = np.full((int(0.1 * px * symbols.shape[1]), picture.shape[1], 3), GREY, dtype=np.uint8)
    row, column = seen.goal
    picture = marked(
        np.concatenate([picture, bar]),
        [(((column + 0.5) * px, (row + 0.5) * px), 0.25 * px, RED, "")],
    )
    if seen.collided:
        height = bar.shape[0]
        place = (picture.shape[1] / 2, picture.shape[0] - height / 2)
        picture = _written(picture, place, "collision", 0.6 * height)
    return picture


def map_picture(seen: MapObservation, px: int = 100) -> np.ndarray:
    """The window (sec. 4.2): blue cells are free, black ones obstacles; landmarks are red discs."""
    symbols = np.array([list(row) for row in seen.view])
    cells = np.where((symbols == "0")[..., None], BLACK, BLUE)
    marks = []
    for y, x in np.argwhere(~np.isin(symbols, ["0", "1"])).tolist():
        agent = symbols[y, x] == "*"
        place = ((x + 0.5) * px, (y + 0.5) * px)
        marks.append((place, 0.3 * px, YELLOW if agent else RED, "" if agent else symbols[y, x]))
    return marked(cells_picture(cells, px, lines=True), marks)


def board_picture(seen: BoxObservation, px: int = 100) -> np.ndarray:
    """The boxes (sec. 4.4), labels from 0; the one just found is yellow; a slot per treasure."""
    cells = np.full((seen.shape[0] + 1, seen.shape[1], 3), BLACK)
    for box, place in enumerate(seen.boxes):
        cells[place] = YELLOW if box == seen.found else BLUE
    for slot in range(min(len(seen.boxes), seen.shape[1])):
        cells[-1, slot] = YELLOW if slot < seen.collected else GREY
    picture = cells_picture(cells, px, lines=True)
    for box, (row, column) in enumerate(seen.boxes):
        if box != seen.found:
            place = ((column + 0.5) * px, (row + 0.5) * px)
            picture = _written(picture, place, str(seen.labels[box]), 0.5 * px, WHITE)
    return picture


def _written(picture, place, text: str, height: float, colour: Colour = BLACK) -> np.ndarray:
    from PIL import Image as Pillow
    from PIL import ImageDraw

    image = Pillow.fromarray(picture)
    write(ImageDraw.Draw(image), place, text, height, colour)
    return np.array(image)
