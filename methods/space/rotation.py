"""Mental rotation (MRT): which option is the stimulus, turned, and not mirrored or altered?"""

from itertools import permutations, product

import numpy as np

from ritornello.methods.space.drawing import Canvas
from ritornello.methods.space.item import Difficulty, Item, Presentation, commas, pick

Cube = tuple[int, int, int]

_SIDES = {"easy": 3, "medium": 4, "hard": 5}
_SYMBOLS = {"easy": 4, "medium": 3, "hard": 2}
_CUBES = {"easy": 8, "medium": 9, "hard": 10}
_FACES = np.array([(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)])


def mental_rotation(
    rng: np.random.Generator,
    difficulty: Difficulty,
    presentation: Presentation,
    *,
    size: int = 192,
) -> Item:
    """Text: an array turned by 90, 180 or 270 degrees; picture: cubes turned in space."""
    if presentation == "text":
        return _arrays(rng, difficulty)
    return _chains(rng, difficulty, size)


def _arrays(rng: np.random.Generator, difficulty: Difficulty) -> Item:
    side, symbols = _SIDES[difficulty], _SYMBOLS[difficulty]
    while True:
        array = rng.integers(symbols, size=(side, side))
        # all eight images distinct: no symmetry under which the mirrored one would be right
        if len({image.tobytes() for image in dihedral(array)}) == 8:
            break
    mirrors = dihedral(array)[4:]
    right = np.rot90(array, int(rng.integers(1, 4)))
    wrong = [mirrors[i] for i in rng.permutation(4)[:2]]
    while len(wrong) < 3:
        moved = right.copy()
        a, b = (tuple(rng.integers(side, size=2)) for _ in range(2))
        moved[a], moved[b] = right[b], right[a]
        if not any((moved == image).all() for image in dihedral(array)):
            wrong.append(moved)
    question = "Which array is the first one, turned by 90, 180 or 270 degrees without mirroring?"
    options = tuple(commas(option.tolist()) for option in (right, *wrong))
    return Item((commas(array.tolist()), question), options, {"array": array})


def dihedral(array: np.ndarray) -> list[np.ndarray]:
    """The four rotations of a square array, then the four of its mirror image."""
    turned = [np.rot90(array, k) for k in range(4)]
    return turned + [np.rot90(array[:, ::-1], k) for k in range(4)]


def _chains(rng: np.random.Generator, difficulty: Difficulty, size: int) -> Item:
    while True:
        chain = cube_chain(rng, _CUBES[difficulty])
        if shape_key(chain) != shape_key(mirrored(chain)):
            break
    views = [ROTATIONS[i] for i in rng.permutation(24)]
    seen, used = draw_cubes(turned(chain, views[0]), size), {views[0].tobytes()}
    options, shapes = [], []
    for number, view in enumerate(v for v in views if v.tobytes() not in used):
        shape = turned(chain if number == 0 else mirrored(chain), view)
        shapes.append(shape)
        options.append(draw_cubes(shape, size))
        if len(options) == 4:
            break
    question = "Which picture shows the first object, turned in space? The others show its mirror."
    return Item((seen, question), tuple(options), {"cubes": chain, "options": shapes})


def cube_chain(rng: np.random.Generator, cubes: int) -> list[Cube]:
    """Four straight arms with three right-angled bends, as Shepard and Metzler drew them."""
    while True:
        lengths = 2 + rng.multinomial(cubes - 5, [0.25] * 4)
        lengths[1:] -= 1
        place, chain, axis = np.zeros(3, dtype=int), [(0, 0, 0)], -1
        for length in lengths:
            axis = pick(rng, [a for a in range(3) if a != axis])
            step = np.zeros(3, dtype=int)
            step[axis] = pick(rng, (-1, 1))
            # the first arm's first cube stands already
            for _ in range(length - (len(chain) == 1)):
                place = place + step
                chain.append((int(place[0]), int(place[1]), int(place[2])))
        if len(set(chain)) == len(chain) == cubes:
            return chain


def _cube_rotations() -> list[np.ndarray]:
    matrices = []
    for order, signs in product(permutations(range(3)), product((-1, 1), repeat=3)):
        matrix = np.zeros((3, 3), dtype=int)
        matrix[range(3), order] = signs
        if round(np.linalg.det(matrix)) == 1:
            matrices.append(matrix)
    return matrices


ROTATIONS = _cube_rotations()


def turned(cubes: list[Cube], rotation: np.ndarray) -> list[Cube]:
    """The cubes after a rotation, a (3, 3) integer matrix."""
    return [(int(x), int(y), int(z)) for x, y, z in np.array(cubes) @ rotation.T]


def mirrored(cubes: list[Cube]) -> list[Cube]:
    """The cubes in a mirror across the plane x = 0."""
    return [(-x, y, z) for x, y, z in cubes]


def shape_key(cubes: list[Cube]) -> tuple[Cube, ...]:
    """The same for all rotations and shifts of a shape, and for no other shape."""
    images = (np.array(turned(cubes, rotation)) for rotation in ROTATIONS)
    return min(tuple(sorted(map(tuple, (i - i.min(axis=0)).tolist()))) for i in images)


def draw_cubes(cubes: list[Cube], size: int = 192) -> np.ndarray:
    """Orthographic picture from above to the side; far faces are painted first."""
    turn, tilt = np.radians(32), np.radians(26)
    right = np.array([np.cos(turn), -np.sin(turn), 0])
    toward = np.array([np.cos(tilt) * np.sin(turn), np.cos(tilt) * np.cos(turn), np.sin(tilt)])
    up = np.cross(right, -toward)
    up = up if up[2] > 0 else -up
    solid = set(cubes)
    faces = []
    for cube in cubes:
        for normal in _FACES[_FACES @ toward > 0]:
            if tuple((np.array(cube) + normal).tolist()) in solid:
                continue
            centre = np.array(cube) + normal / 2
            sides = [axis for axis in np.eye(3) if not (axis @ normal)]
            corners = [
                centre + (a * sides[0] + b * sides[1]) / 2
                for a, b in ((-1, -1), (-1, 1), (1, 1), (1, -1))
            ]
            faces.append((centre @ toward, corners, abs(normal @ np.array([0.6, 0.75, 0.95]))))
    points = np.array([[corner @ right, -(corner @ up)] for _, cs, _ in faces for corner in cs])
    low, span = points.min(axis=0), np.ptp(points, axis=0).max()
    shift = 0.5 - 0.86 * (points.max(axis=0) - low) / (2 * span)
    canvas = Canvas(size)
    for _, corners, light in sorted(faces, key=lambda face: face[0]):
        flat = [0.86 * (np.array([c @ right, -(c @ up)]) - low) / span + shift for c in corners]
        shade = round(230 * light)
        canvas.polygon(flat, (shade, shade, shade), (0, 0, 0))
    return canvas.pixels()
