"""Every generated question has exactly one right option, found by solvers that read it."""

import math
import re
from itertools import permutations

import numpy as np
import pytest

from ritornello.common.chat import Image, Text
from ritornello.methods.space import QUESTION_TASKS, make_task
from ritornello.methods.space.form_board import covers, turns
from ritornello.methods.space.geometry import circular_gap
from ritornello.methods.space.layouts import make_world
from ritornello.methods.space.mazes import carve_maze, far_ends
from ritornello.methods.space.paths import distances
from ritornello.methods.space.perception import water_level
from ritornello.methods.space.rotation import ROTATIONS, cube_chain, mirrored, shape_key, turned

TEXT_FAMILIES = sorted(set(QUESTION_TASKS) - {"wlt"})
MOVES = [(0, -1), (0, 1), (-1, 0), (1, 0)]


def grids(text):
    return [[line.split(",") for line in part.split("\n")] for part in text.split("\n\n")]


def stitched(frames):
    """Symbols by place, put together from the views of a walk alone; and the walk."""
    place, walk, known, before = (0, 0), [(0, 0)], {}, {}
    for number, frame in enumerate(frames):
        seen = {(x - 2, y - 2): s for y, row in enumerate(frame) for x, s in enumerate(row)}
        if number:
            fitting = [
                move
                for move in MOVES
                if before[move] != "0"
                and all(
                    "*" in (symbol, before.get((x + move[0], y + move[1]), "*"))
                    or symbol == before[x + move[0], y + move[1]]
                    for (x, y), symbol in seen.items()
                )
            ]
            assert len(fitting) == 1, "the views do not say which way the walk went"
            place = (place[0] + fitting[0][0], place[1] + fitting[0][1])
            walk.append(place)
        known |= {(place[0] + x, place[1] + y): s for (x, y), s in seen.items() if s != "*"}
        before = seen
    return known, walk


def landmarks(sample):
    known, walk = stitched(grids(sample.parts[0].text))
    found = {symbol: place for place, symbol in known.items() if symbol.isalpha()}
    return found, walk[0]


def clockwise(here, facing, target):
    angles = [math.atan2(p[1] - here[1], p[0] - here[0]) for p in (facing, target)]
    return math.degrees(angles[1] - angles[0])


def numbers(text):
    return [float(n) for n in re.findall(r"-?\d+\.?\d*", text)]


def solve_direction(sample):
    places, _ = landmarks(sample)
    p, q, r = re.search(r"(\w) and face (\w).* face (\w)\?", sample.parts[1].text).groups()
    side = re.search(r"directly (above|below|left of|right of)", sample.parts[1].text)[1]
    dx, dy = {"above": (0, -1), "below": (0, 1), "left of": (-1, 0), "right of": (1, 0)}[side]
    here = (places[p][0] + dx, places[p][1] + dy)
    angle = clockwise(here, places[q], places[r])
    return [circular_gap(numbers(c.text)[0], angle) <= 0.51 for c in sample.choices]


def solve_distance(sample):
    places, _ = landmarks(sample)
    q, r, p = re.search(r"How far are (\w) and (\w) from (\w)", sample.parts[1].text).groups()
    right = [math.dist(places[p], places[q]), math.dist(places[p], places[r])]
    return [np.allclose(numbers(c.text), right, atol=0.051) for c in sample.choices]


def solve_map_sketching(sample):
    places, start = landmarks(sample)
    places["S"] = start
    right = {name: (x - start[0], y - start[1]) for name, (x, y) in places.items()}

    def read(text):
        rows = [line.split(",") for line in text.split("\n")]
        at = {s: (x, y) for y, row in enumerate(rows) for x, s in enumerate(row) if s != "0"}
        return {s: (x - at["S"][0], y - at["S"][1]) for s, (x, y) in at.items()}

    return [read(c.text) == right for c in sample.choices]


def solve_mrt(sample):
    (array,) = map(np.array, grids(sample.parts[0].text))
    return [
        any((np.array(grids(c.text)[0]) == np.rot90(array, k)).all() for k in (1, 2, 3))
        for c in sample.choices
    ]


def solve_ptt(sample):
    listed, question = (part.text for part in sample.parts)
    places = {n: (int(x), int(y)) for n, x, y in re.findall(r"(\w) \((\d+), (\d+)\)", listed)}
    a, b, c = re.search(r"at (\w) and face (\w).* face (\w)\?", question).groups()
    angle = clockwise(places[a], places[b], places[c])
    return [circular_gap(numbers(o.text)[0], angle) <= 0.51 for o in sample.choices]


def solve_jlo(sample):
    ends = [numbers(line)[1:] for line in sample.parts[0].text.split("\n")]
    u, v = (np.array([x2 - x1, y2 - y1]) for x1, y1, x2, y2 in ends)
    angle = math.degrees(math.acos(u @ v / np.linalg.norm(u) / np.linalg.norm(v)))
    # coordinates have one decimal: the nearest multiple of 18 is meant
    return [abs(numbers(c.text)[0] - angle) < 9 for c in sample.choices]


def solve_mpfb(sample):
    def cells(grid):
        return {(r, c) for r, row in enumerate(grid) for c, s in enumerate(row) if s == "1"}

    pieces = [cells(grid) for grid in grids(sample.parts[0].text)]

    def placements(piece, outline):
        for _ in range(4):
            piece = {(c, -r) for r, c in piece}
            for r0, c0 in outline:
                anchor = min(piece)
                placed = frozenset((r - anchor[0] + r0, c - anchor[1] + c0) for r, c in piece)
                if placed <= outline:
                    yield placed

    def fits(outline, left):
        if not left:
            return not outline
        return any(fits(outline - p, left[1:]) for p in set(placements(left[0], outline)))

    ordered = sorted(pieces, key=len, reverse=True)
    return [fits(frozenset(cells(grids(c.text)[0])), ordered) for c in sample.choices]


def solve_satt(sample):
    (board,) = grids(sample.parts[0].text)
    target = re.search(r"every (\w)\?", sample.parts[1].text)[1]
    places = {
        (r, c)
        for r, row in enumerate(board, start=1)
        for c, symbol in enumerate(row, start=1)
        if symbol == target
    }
    read = [re.findall(r"\((\d+), (\d+)\)", c.text) for c in sample.choices]
    return [{(int(r), int(c)) for r, c in listed} == places for listed in read]


def solve_cbtt(sample):
    frames, numbered = grids(sample.parts[0].text), grids(sample.parts[1].text)[0]
    order = [
        numbered[r][c]
        for frame in frames
        for r, row in enumerate(frame)
        for c, symbol in enumerate(row)
        if symbol == "2"
    ]
    return [c.text.split(", ") == order for c in sample.choices]


def solve_sadd(sample):
    first, second = map(np.array, grids(sample.parts[0].text))
    blue = (first == "B").astype(int) + (second == "B")
    total = np.array(["0", "B", "W"])[blue]
    return [(np.array(grids(c.text)[0]) == total).all() for c in sample.choices]


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_a_solver_that_reads_the_text_finds_exactly_the_right_option(family, difficulty):
    solve = globals()[f"solve_{family}"]
    number = 2 if family in ("direction", "distance", "map_sketching", "mpfb") else 12
    for sample in make_task(family, "text", number, seed=3, difficulty=difficulty):
        right = solve(sample)
        assert sum(right) == 1, sample.text
        assert right.index(True) == sample.gold[0]
        assert len({choice.text for choice in sample.choices}) == 4


@pytest.mark.parametrize("family", ["direction", "ptt"])
def test_angles_to_choose_from_are_thirty_degrees_apart(family):
    for sample in make_task(family, "text", 4, seed=1, difficulty="easy"):
        angles = [numbers(choice.text)[0] for choice in sample.choices]
        assert min(circular_gap(a, b) for a, b in permutations(angles, 2)) >= 30


def test_the_right_slot_is_uniform_and_the_seed_decides():
    samples = make_task("sadd", "text", 400, seed=0, difficulty="easy")
    counts = np.bincount([sample.gold[0] for sample in samples], minlength=4)
    assert ((counts - 100) ** 2 / 100).sum() < 16.3  # chi-square with 3 degrees, p = 0.001
    few = make_task("sadd", "text", 10, seed=0, difficulty="easy")
    assert [s.text for s in few] == [s.text for s in samples[:10]]
    assert [s.text for s in make_task("sadd", "text", 10, seed=1)] != [s.text for s in few]


@pytest.mark.parametrize("family", sorted(QUESTION_TASKS))
def test_pictures_are_distinct_png_files(family):
    (sample,) = make_task(family, "image", 1, seed=2, difficulty="easy")
    pictures = [part for part in sample.parts if isinstance(part, Image)]
    assert pictures
    assert all(picture.data.startswith(b"\x89PNG") for picture in pictures)
    assert isinstance(sample.parts[-1], Text)
    assert len({choice.parts for choice in sample.choices}) == 4


def test_turned_chains_are_right_and_mirrored_ones_are_not():
    for sample in make_task("mrt", "image", 3, seed=0, difficulty="hard"):
        same = [
            shape_key(shape) == shape_key(sample.meta["cubes"]) for shape in sample.meta["options"]
        ]
        assert same == [True, False, False, False]


def test_chains_of_cubes_have_three_bends_and_a_mirror_image_of_their_own_kind():
    rng = np.random.default_rng(0)
    assert len(ROTATIONS) == 24
    for cubes in (8, 9, 10):
        chain = cube_chain(rng, cubes)
        steps = np.diff(np.array(chain), axis=0)
        assert (np.abs(steps).sum(axis=1) == 1).all()
        assert (np.abs(np.diff(steps, axis=0)).sum(axis=1) > 0).sum() == 3
        assert len(set(chain)) == cubes
        for rotation in ROTATIONS[::5]:
            assert shape_key(turned(chain, rotation)) == shape_key(chain)
        assert shape_key(mirrored(mirrored(chain))) == shape_key(chain)


def test_water_in_the_right_bottle_alone_is_level():
    """Read from the pixels: the upper edge of the water, column by column."""
    rng = np.random.default_rng(4)
    for _ in range(5):
        item = water_level(rng, "medium", "image")
        slopes = []
        for picture in item.options:
            water = (picture == (90, 160, 255)).all(axis=2)
            columns = np.flatnonzero(water.sum(axis=0) > 12)
            middle = columns[len(columns) // 3 : 2 * len(columns) // 3]
            slopes.append(abs(np.polyfit(middle, water[:, middle].argmax(axis=0), 1)[0]))
        assert slopes[0] < 0.02 < min(slopes[1:])


def test_covers_agrees_with_hand_made_cases():
    square = ((0, 0), (0, 1), (1, 0), (1, 1))
    bar, bent = ((0, 0), (0, 1)), ((0, 0), (0, 1), (1, 0))
    assert covers(square, [bar, bar])
    assert covers(square, [bent, ((0, 0),)])
    line = ((0, 0), (0, 1), (0, 2), (0, 3))
    assert not covers(line, [bent, ((0, 0),)])
    assert not covers(square, [bar])  # equal area is needed
    assert len(turns(bar)) == 2
    # an S cannot be flipped into a Z
    s, z = ((0, 1), (0, 2), (1, 0), (1, 1)), ((0, 0), (0, 1), (1, 1), (1, 2))
    assert covers(s, [s])
    assert not covers(z, [s])


@pytest.mark.parametrize("difficulty", ["easy", "hard"])
def test_worlds_are_connected_and_their_walks_take_detours(difficulty):
    rng = np.random.default_rng(5)
    for _ in range(3):
        world = make_world(rng, difficulty)
        steps = distances(world.grid, (world.start[1], world.start[0]))
        assert (steps[world.grid] >= 0).all()
        shortest = steps[world.goal[1], world.goal[0]]
        assert 8 <= shortest <= 40
        assert len(world.walkthrough) - 1 >= 1.4 * shortest
        assert 4 <= len(world.landmarks) <= 8
        assert world.goal in world.landmarks.values()


def test_mazes_are_perfect_and_their_ends_far_apart():
    rng = np.random.default_rng(6)
    maze = carve_maze(rng, 11, 15)
    passages = ((maze[:, :-1] & maze[:, 1:]).sum()) + ((maze[:-1] & maze[1:]).sum())
    assert passages == maze.sum() - 1  # a tree: one path between any two cells
    start, goal = far_ends(rng, maze)
    diameter = max(distances(maze, (int(r), int(c))).max() for r, c in np.argwhere(maze))
    assert 2 * distances(maze, start)[goal] >= diameter


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mrtt"}, "name must be one of"),
        ({"name": "mrt", "presentation": "vision"}, "presentation of mrt"),
        ({"name": "wlt", "presentation": "text"}, "presentation of wlt"),
        ({"name": "mrt", "difficulty": "extreme"}, "difficulty must be"),
        ({"name": "mrt", "n": 0}, "n must be >= 1"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_task(**arguments)
