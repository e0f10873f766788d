"""Angles on a sheet: judgement of line orientation, perspective taking, water level."""

import math

import numpy as np

from ritornello.methods.space.drawing import BLACK, RED, Canvas
from ritornello.methods.space.geometry import signed_angle, spread_angles
from ritornello.methods.space.item import Difficulty, Item, Presentation, pick

_RAYS = 11  # canonical directions, 18 degrees apart, from 0 to 180
_LENGTHS = {"easy": 6.0, "medium": 4.0, "hard": 2.5}
_OBJECTS = {"easy": 4, "medium": 6, "hard": 8}
_TILTS = {"easy": (20, 30), "medium": (30, 50), "hard": (50, 70)}
_WATER: tuple[int, int, int] = (90, 160, 255)


def line_orientation(
    rng: np.random.Generator,
    difficulty: Difficulty,
    presentation: Presentation,
    *,
    size: int = 192,
) -> Item:
    """JLO. Text: the angle between two directed segments; picture: which rays are parallel to them.

    In pictures 0 and 180 degrees look alike, so the last ray is drawn but never asked for.
    """
    rays = _RAYS if presentation == "text" else _RAYS - 1
    first, second = (int(ray) for ray in rng.choice(rays, 2, replace=False))
    facts = {"rays": (first, second)}
    if presentation == "image":
        return _drawn_orientation(rng, difficulty, size, facts)
    right = 18 * abs(first - second)
    others = [angle for angle in range(18, 181, 18) if angle != right]
    options = [right, *(others[i] for i in rng.permutation(len(others))[:3])]
    lines = []
    for name, ray in zip("12", (first, second), strict=True):
        length = _LENGTHS[difficulty] * rng.uniform(1, 2)
        x, y = rng.uniform(-9, 9, size=2)
        end = (x + length * math.cos(math.pi * ray / 10), y + length * math.sin(math.pi * ray / 10))
        lines.append(f"Segment {name}: from ({x:.1f}, {y:.1f}) to ({end[0]:.1f}, {end[1]:.1f})")
    question = "Both run from their first to their second end. What angle is between them?"
    return Item(("\n".join(lines), question), tuple(f"{a} degrees" for a in options), facts)


def _drawn_orientation(
    rng: np.random.Generator, difficulty: Difficulty, size: int, facts: dict
) -> Item:
    first, second = facts["rays"]
    pairs = [(first, second)]
    while len(pairs) < 4:
        one, other = (int(ray) for ray in rng.choice(_RAYS - 1, 2, replace=False))
        if {one, other} not in map(set, pairs):
            pairs.append((one, other))
    half = {"easy": 0.2, "medium": 0.14, "hard": 0.09}[difficulty]
    canvas = Canvas(size)
    for ray, centre in zip((first, second), ((0.28, 0.5), (0.72, 0.5)), strict=True):
        at = np.array(centre) + rng.uniform(-0.05, 0.05, size=2)
        along = half * _along(ray)
        canvas.line(at - along, at + along, width=0.02)
    question = "Which picture marks, in red, the two rays that are parallel to the two segments?"
    options = tuple(_fan(pair, size) for pair in pairs)
    return Item((canvas.pixels(), question), options, facts | {"options": pairs})


def _fan(marked: tuple[int, int], size: int) -> np.ndarray:
    """Eleven numbered rays from one point, two of them marked."""
    canvas, origin = Canvas(size), np.array([0.5, 0.82])
    for ray in range(_RAYS):
        tip = origin + 0.38 * _along(ray)
        hit = ray in marked
        canvas.line(origin, tip, RED if hit else BLACK, 0.03 if hit else 0.006)
        canvas.label(origin + 0.45 * _along(ray), str(ray + 1), 0.06)
    return canvas.pixels()


def _along(ray: int) -> np.ndarray:
    return np.array([math.cos(math.pi * ray / 10), -math.sin(math.pi * ray / 10)])


def perspective_taking(
    rng: np.random.Generator, difficulty: Difficulty, presentation: Presentation, *, size: int = 256
) -> Item:
    """PTT: stand at one object, face a second; the clockwise angle to a third."""
    number, side = _OBJECTS[difficulty], 11
    while True:
        cells = rng.choice(side * side, number, replace=False)
        objects = {
            letter: (int(cell) % side, int(cell) // side)
            for letter, cell in zip("ABCDEFGH", cells, strict=False)
        }
        a, b, c = rng.permutation(sorted(objects))[:3].tolist()
        here = objects[a]
        u, v = (tuple(np.subtract(objects[other], here).tolist()) for other in (b, c))
        right = round(signed_angle(u, v)) % 360
        if 10 <= right <= 350:
            break
    values = spread_angles(rng, right, [360 - right, (right + 180) % 360])
    question = (
        f"You stand at {a} and face {b}. By how many degrees do you turn clockwise to face {c}?"
    )
    if presentation == "text":
        listed = ", ".join(f"{name} ({x}, {y})" for name, (x, y) in objects.items())
        shown = f"Objects at (x, y), x to the right and y down: {listed}."
    else:
        shown = _drawn_objects(objects, side, size)
    options = tuple(f"{value} degrees" for value in values)
    return Item((shown, question), options, {"objects": objects, "asked": (a, b, c)})


def _drawn_objects(objects: dict[str, tuple[int, int]], side: int, size: int) -> np.ndarray:
    canvas = Canvas(size)
    for name, (x, y) in objects.items():
        place = ((x + 0.5) / side, (y + 0.5) / side)
        canvas.disc(place, 0.4 / side, RED)
        canvas.label(place, name, 0.6 / side)
    return canvas.pixels()


def water_level(
    rng: np.random.Generator, difficulty: Difficulty, presentation: Presentation, *, size: int = 192
) -> Item:
    """WLT: in which tilted bottle does the water lie as it must? Pictures only.

    The wrong lines differ from the level, and from each other, by at least 15 degrees; one of them
    stays square to the bottle, the usual mistake.
    """
    low, high = _TILTS[difficulty]
    tilt = pick(rng, (-1, 1)) * rng.uniform(low, high)
    angles = [0.0, tilt]
    for angle in rng.permutation(np.arange(-75, 76, 5)).tolist():
        if len(angles) < 4 and all(abs(angle - other) >= 15 for other in angles):
            angles.append(float(angle))
    fill = rng.uniform(-0.1, 0.1)
    options = tuple(_bottle(tilt, angle, fill, size) for angle in angles)
    question = "The bottle stands still, half full. In which picture is the water as it must be?"
    upright = _bottle(0.0, 0.0, fill, size)
    return Item((upright, question), options, {"tilt": tilt, "lines": angles})


def _bottle(tilt: float, line: float, fill: float, size: int) -> np.ndarray:
    """A bottle leaning by `tilt` degrees, its water line by `line` degrees from the level."""
    outline = np.array(
        [
            *((-0.16, 0.3), (0.16, 0.3), (0.16, -0.14), (0.06, -0.22), (0.06, -0.36)),
            *((-0.06, -0.36), (-0.06, -0.22), (-0.16, -0.14)),
        ]
    )
    angle = math.radians(tilt)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    body = outline @ turn.T
    below = np.array([-math.sin(math.radians(line)), math.cos(math.radians(line))])
    water = _clipped(body, below, np.array([0.0, fill]) @ turn.T)
    canvas, centre = Canvas(size), np.array([0.5, 0.5])
    if len(water) >= 3:
        canvas.polygon(centre + water, _WATER)
    for a, b in zip(body, np.roll(body, -1, axis=0), strict=True):
        canvas.line(centre + a, centre + b, width=0.016)
    return canvas.pixels()


def _clipped(corners: np.ndarray, normal: np.ndarray, through: np.ndarray) -> np.ndarray:
    """The part of a polygon on the side of a line that its normal points to."""
    kept = []
    heights = (corners - through) @ normal
    for i, (corner, height) in enumerate(zip(corners, heights, strict=True)):
        after, next_height = corners[(i + 1) % len(corners)], heights[(i + 1) % len(corners)]
        if height >= 0:
            kept.append(corner)
        if (height >= 0) != (next_height >= 0):
            kept.append(corner + (after - corner) * height / (height - next_height))
    return np.array(kept)
