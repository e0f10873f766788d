"""Trifeatures: pictures of ten shapes in ten colours and ten textures (Hermann & Lampinen, 2020).

Every picture shows one shape, filled with one texture in one colour, on grey, at a random angle and
place. All three features vary independently, so that what a representation keeps can be counted.
"""

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, UInt8

from ritornello.common.errors import UserError

SHAPES = (
    "triangle", "square", "plus", "circle", "tee",
    "rhombus", "pentagon", "star", "fivesquare", "trapezoid",
)  # fmt: skip
TEXTURES = (
    "solid", "stripes", "grid", "hexgrid", "dots",
    "noise", "triangles", "zigzags", "rain", "pluses",
)  # fmt: skip
COLOURS = {
    "red": (1.0, 0.0, 0.0), "green": (0.0, 1.0, 0.0), "blue": (0.0, 0.0, 1.0),
    "yellow": (1.0, 1.0, 0.0), "pink": (1.0, 0.4, 1.0), "cyan": (0.0, 1.0, 1.0),
    "purple": (0.3, 0.0, 0.5), "ocean": (0.1, 0.4, 0.5), "orange": (1.0, 0.6, 0.0),
    "white": (1.0, 1.0, 1.0),
}  # fmt: skip
BACKGROUND = 0.5
MAX_ANGLE = 45  # degrees


def shape_template(name: str, size: int = 128) -> Float32[np.ndarray, "size size"]:
    """The shape as a mask of zeros and ones, upright.

    Raises:
        ValueError: no such shape.
    """
    i, j = np.ogrid[:size, :size]
    half, third, sixth = size // 2, size // 3, size // 6
    aside = np.abs(j - half)  # distance from the vertical axis
    bar = np.abs(np.arange(size) - half) <= sixth
    outer = (np.arange(size) < third) | (np.arange(size) >= 2 * size // 3)

    def taper(offset: np.ndarray) -> np.ndarray:
        return (offset < j) & (j < size - offset)

    if name == "triangle":
        mask = aside - i // 2 < 1
    elif name == "square":
        mask = np.ones((size, size), bool)
    elif name == "plus":
        mask = bar[:, None] | bar[None, :]
    elif name == "circle":
        mask = (i + 0.5 - half) ** 2 + (j + 0.5 - half) ** 2 < half**2
    elif name == "tee":
        mask = bar[None, :] | (i < third)
    elif name == "rhombus":
        mask = (j - half + i // 2 > 0) & (j - half + i // 2 < half)
    elif name == "pentagon":
        waist = int(size * 0.4)
        mask = np.where(i < waist, aside - i * 1.25 < 1, taper((i - waist) // 3.1))
    elif name == "star":
        mask = _star(size, i, j, aside)
    elif name == "fivesquare":
        mask = outer[:, None] == outer[None, :]
    elif name == "trapezoid":
        mask = taper(i // 3.1)
    else:
        raise UserError(f"shape must be one of {SHAPES}, got {name!r}")
    return np.broadcast_to(mask, (size, size)).astype(np.float32)


def _star(size: int, i: np.ndarray, j: np.ndarray, aside: np.ndarray) -> np.ndarray:
    """A spike, two arms and two legs."""
    arms = int(size * 0.4)
    below_arms, legs = arms + int(0.2 * size), arms + int(0.15 * size)
    spike = (i < arms) & (aside - i // 4 < 1)
    narrowing = (i - arms) * 2.4
    arm = (i >= arms) & (i < below_arms) & (narrowing < j) & (j < size - narrowing)
    outer, inner = size * 0.33 - 0.43 * (i - legs), size * 0.62 - 1.05 * (i - legs)
    mirrored = size - j
    leg = ((outer < j) & (j < inner)) | ((outer < mirrored) & (mirrored < inner))
    return spike | arm | ((i >= legs) & leg)


@cache
def _tile(name: str, scale: int) -> Bool[np.ndarray, "#rows #columns"]:
    """The filled pixels of a texture that repeats every `2 scale` rows and `scale` columns."""
    i, x = np.ogrid[: 2 * scale, :scale]
    y, odd, middle = i % scale, i >= scale, scale // 2
    if name == "solid":
        return np.ones((1, 1), bool)
    if name == "stripes":
        return y < scale // 3
    if name == "grid":
        return (y < scale // 3) | (x < scale // 3)
    if name == "dots":
        return (x - middle) ** 2 + (y - middle) ** 2 < (3 * scale // 7) ** 2
    if name == "triangles":
        return y // 2 - np.abs(x - middle) > 0
    if name == "zigzags":
        x = np.where(odd, scale - x - 1, x)
        return (y // 2 < x) & (x < scale - middle + y // 2)
    upright = np.abs(x - middle) < 1.5  # pluses, every second row of them shifted by half
    level = np.abs(y - middle) < 1.5
    edge = (x < 1.5) | (scale - x < 1.5)
    return np.where(odd, edge | (level & (np.abs(x - middle) > 1.5)), upright | level)


def _coins(p: float, size: int, rng: np.random.Generator) -> Bool[np.ndarray, "size size"]:
    """What `rng.binomial(1, p)` draws from the same stream, several times as fast."""
    drawn = np.empty((size, size), bool)
    for top in range(0, size, 16):  # few rows at a time stay in the processor's cache
        rows = drawn[top : top + 16]
        np.greater(rng.random(rows.shape), 1 - p, out=rows)
    return drawn


def _draw_texture(
    name: str, size: int, scale: int, rng: np.random.Generator
) -> Bool[np.ndarray, "size size"]:
    """The filled pixels of a texture, at a random offset."""
    if name not in TEXTURES:
        raise UserError(f"texture must be one of {TEXTURES}, got {name!r}")
    offset_x, offset_y = int(rng.integers(0, scale)), int(rng.integers(0, scale))
    if name == "noise":
        return _coins(0.5, size, rng)
    if name == "rain":
        rng.integers(0, scale)  # an offset that the original draws and does not use
        starts = _coins(0.05, size, rng)
        drawn = starts.copy()
        for fall in range(1, scale - scale // 3):
            drawn[fall:] |= starts[:-fall]
        return drawn
    row, column = np.arange(size) + offset_y, np.arange(size) + offset_x
    if name == "hexgrid":
        thin, slope = scale // 5, np.arange(scale)[:, None]
        leaning = ((column + slope) % scale < thin) | ((column - slope) % scale < thin)
        level = row % scale < thin
        return leaning[(1.73 * row).astype(np.int64) % scale] | level[:, None]
    tile = np.broadcast_to(_tile(name, scale), (2 * scale, scale))
    return tile[:, column % scale][row % (2 * scale)]


def texture(
    name: str, size: int, rng: np.random.Generator, scale: int = 10
) -> Float32[np.ndarray, "size size"]:
    """A texture as a mask of zeros and ones, at a random offset.

    Raises:
        ValueError: no such texture.
    """
    return _draw_texture(name, size, scale, rng).astype(np.float32)


def _rotation(angle: int) -> Float[np.ndarray, "2 2"]:
    """Takes a place in the rotated picture, from its centre, to the place in the source."""
    c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return np.array([[c, s], [-s, c]])


def _rotated(template: Float32[np.ndarray, "n n"], angle: int) -> Float32[np.ndarray, "m m"]:
    """The template turned by `angle` degrees, bilinear, on a canvas that holds all of it."""
    n, turn = len(template), _rotation(angle)
    corners = turn @ np.array([[0, 0, n, n], [0, n, 0, n]])
    side = int(np.ptp(corners[0]) + 0.5)
    steps = np.arange(side) - (side - 1) / 2
    centre = (n - 1) / 2
    y = (turn[0, 0] * steps[:, None] + centre) + turn[0, 1] * steps[None, :]
    x = (turn[1, 0] * steps[:, None] + centre) + turn[1, 1] * steps[None, :]
    # Places outside the source are empty, as are those between its last pixel and its edge.
    inside = np.flatnonzero((y >= 0) & (y <= n - 1) & (x >= 0) & (x <= n - 1))
    y, x = y.take(inside), x.take(inside)
    top, left = np.minimum(y.astype(np.int32), n - 2), np.minimum(x.astype(np.int32), n - 2)
    # Between four filled pixels all is filled: only the outline needs the weights.
    square = template[:-1, :-1] + template[:-1, 1:] + template[1:, :-1] + template[1:, 1:]
    filled = square.take(top * (n - 1) + left)
    share = (filled == 4).astype(np.float32)
    edge = np.flatnonzero((filled > 0) & (filled < 4))
    top, left = top.take(edge), left.take(edge)
    down, right = y.take(edge) - top, x.take(edge) - left
    flat, place = template.ravel(), top * n + left
    upper = flat.take(place) * (1 - right) + flat.take(place + 1) * right
    lower = flat.take(place + n) * (1 - right) + flat.take(place + (n + 1)) * right
    share[edge] = upper * (1 - down) + lower * down
    turned = np.zeros((side, side), np.float32)
    turned.ravel()[inside] = share
    return turned


@dataclass(frozen=True)
class TrifeatureRenderer:
    """Draws stimuli.

    Args:
        size: side of the picture in pixels.
        shape_size: side of the upright shape; turned by 45 degrees it must fit the picture.
        texture_scale: period of the textures in pixels.
    """

    size: int = 224
    shape_size: int = 128
    texture_scale: int = 10

    def __post_init__(self) -> None:
        if int(self.shape_size * math.sqrt(2) + 0.5) >= self.size or self.shape_size < 6:
            raise UserError(
                f"shape_size must be at least 6 and fit size={self.size} when turned "
                f"(below {self.size / math.sqrt(2):.0f}), got {self.shape_size}"
            )
        if self.texture_scale < 5:
            raise UserError(f"texture_scale must be at least 5, got {self.texture_scale}")

    @cached_property
    def _templates(self) -> dict[str, np.ndarray]:
        return {name: shape_template(name, self.shape_size) for name in SHAPES}

    def render(
        self, shape: str, colour: str, texture: str, rng: np.random.Generator
    ) -> UInt8[np.ndarray, "size size 3"]:
        """One picture; the random numbers are drawn in the order of the original generator.

        Raises:
            ValueError: an unknown shape, colour or texture.
        """
        if shape not in SHAPES:
            raise UserError(f"shape must be one of {SHAPES}, got {shape!r}")
        if colour not in COLOURS:
            raise UserError(f"colour must be one of {tuple(COLOURS)}, got {colour!r}")
        turned = _rotated(self._templates[shape], int(rng.integers(-MAX_ANGLE, MAX_ANGLE)))
        side = len(turned)
        top, left = int(rng.integers(0, self.size - side)), int(rng.integers(0, self.size - side))
        field = 2 * self.size
        drawn = _draw_texture(texture, field, self.texture_scale, rng)
        turn = _rotation(int(rng.integers(-MAX_ANGLE, MAX_ANGLE)))
        # Only the texture under the shape is looked up, at the nearest pixel of the turned field.
        under = np.flatnonzero(turned > 0)
        row, column = np.divmod(under.astype(np.int32), side)
        half, centre = self.size // 2, (field - 1) / 2
        y, x = row + (top + half - centre), column + (left + half - centre)
        i = (turn[0, 0] * y + turn[0, 1] * x + (centre + 0.5)).astype(np.int32)
        j = (turn[1, 0] * y + turn[1, 1] * x + (centre + 0.5)).astype(np.int32)
        filled = np.flatnonzero(drawn.take(i * field + j))
        share = turned.take(under[filled])
        ink = np.array(COLOURS[colour], np.float32)
        image = np.full((self.size, self.size, 3), int(255 * BACKGROUND), np.uint8)
        pixels = image.reshape(-1, 3)
        place = (row[filled] + top) * self.size + (column[filled] + left)
        # a pixel's three bytes as one item are set three times as fast
        pixels.view("V3")[place] = (ink * 255).astype(np.uint8).view("V3")
        edge = np.flatnonzero(share < 1)
        part = share[edge, None]
        blended = part * ink + (1 - part) * np.float32(BACKGROUND)
        pixels[place[edge]] = (blended * 255).astype(np.uint8)
        return image


@dataclass(frozen=True)
class Trifeatures:
    """Pictures with the numbers of their features, sorted by file name as the original lists them.

    Attributes:
        images: uint8 (pictures, size, size, 3).
        shape, texture, colour: index into `SHAPES`, `TEXTURES` and `COLOURS`.
        names: `shape_texture_colour_view.png`, without `_view` in the test split.
    """

    images: UInt8[np.ndarray, "n size size 3"]
    shape: Int[np.ndarray, " n"]
    texture: Int[np.ndarray, " n"]
    colour: Int[np.ndarray, " n"]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


def split_combinations(seed: int = 42) -> Bool[np.ndarray, "1000"]:
    """True for the 200 of 1000 combinations that are tests; shape, texture, colour nested."""
    flags = np.array([True] * 200 + [False] * 800)
    np.random.default_rng(seed).shuffle(flags)
    return flags


def list_stimuli(split: str, views: int = 3, seed: int = 42) -> list[tuple[str, int, int, int]]:
    """Name and shape, texture, colour numbers of every picture of a split, sorted by name.

    Raises:
        ValueError: `split` is neither train nor test.
    """
    if split not in ("train", "test"):
        raise UserError(f"split must be 'train' or 'test', got {split!r}")
    listed = []
    for number, is_test in enumerate(split_combinations(seed)):
        if is_test != (split == "test"):
            continue
        s, t, c = number // 100, number // 10 % 10, number % 10
        name = f"{SHAPES[s]}_{TEXTURES[t]}_{tuple(COLOURS)[c]}"
        endings = [".png"] if is_test else [f"_{view}.png" for view in range(views)]
        listed += [(name + ending, s, t, c) for ending in endings]
    return sorted(listed)


def trifeatures(
    split: str,
    *,
    renderer: TrifeatureRenderer | None = None,
    views: int = 3,
    seed: int = 42,
    images: UInt8[np.ndarray, "n size size 3"] | None = None,
) -> Trifeatures:
    """Renders a split: 2400 training pictures (3 of each combination) or 200 test pictures.

    Every picture has a random stream of its own: none depends on how many were drawn before.

    Args:
        images: rendered before, by the same call; not rendered again.
    """
    renderer = renderer or TrifeatureRenderer()
    listed = list_stimuli(split, views, seed)
    names, s, t, c = zip(*listed, strict=True)
    features = np.array(s), np.array(t), np.array(c)
    if images is not None:
        return Trifeatures(images, *features, names)
    images = np.empty((len(listed), renderer.size, renderer.size, 3), np.uint8)
    for place, (_, s, t, c) in enumerate(listed):
        rng = np.random.default_rng([seed, split == "test", place])
        images[place] = renderer.render(SHAPES[s], tuple(COLOURS)[c], TEXTURES[t], rng)
    return Trifeatures(images, *features, names)
