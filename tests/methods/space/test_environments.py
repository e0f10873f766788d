"""Environments, metrics, parsers and scripted players beyond the published values."""

import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ritornello.methods.space.discrete_maps import DiscreteMap, DiscreteMapEnv
from ritornello.methods.space.games import SpaceGameTask, play_policy
from ritornello.methods.space.geometry import signed_angle
from ritornello.methods.space.mazes import MazeBatch, MazeEnv, carve_maze, far_ends
from ritornello.methods.space.parsing import (
    MAZE_ACTIONS,
    official_answer,
    parse_action,
    parse_answer,
    parse_box,
)
from ritornello.methods.space.paths import (
    distances,
    path_metrics,
    shortest_path,
    strict_path_metrics,
)
from ritornello.methods.space.policies import (
    MemoryPolicy,
    NoMemoryPolicy,
    OraclePolicy,
    PerfectMemoryPolicy,
    RandomPolicy,
    ReplayRoute,
    WallFollower,
    ZoneStopper,
)
from ritornello.methods.space.working_memory import (
    STEP_LIMITS,
    WorkingMemoryEnv,
    cswm_chance,
    place_boxes,
    play_working_memory,
    success_probability,
)

# . free, # wall: the goal at the end of row 0 is one diagonal from (1, 1), but far to walk
CORNER = np.array([[c == "." for c in row] for row in ("#.#", ".#.", "...")])


def test_distances_and_shortest_path_on_a_hand_made_map():
    assert distances(CORNER, (1, 0)).tolist() == [[-1, -1, -1], [0, -1, 4], [1, 2, 3]]
    assert shortest_path(CORNER, (1, 0), (1, 2)) == [(1, 0), (2, 0), (2, 1), (2, 2), (1, 2)]
    with pytest.raises(ValueError, match="no path leads from start"):
        shortest_path(CORNER, (1, 0), (0, 1))
    with pytest.raises(ValueError, match="start must be a free cell"):
        shortest_path(CORNER, (1, 1), (1, 0))


def test_success_through_a_wall_counts_as_published_but_not_strictly():
    grid = np.array([[True, True, True], [False, False, True], [True, True, True]])
    reference = shortest_path(grid, (0, 0), (2, 1))  # six steps, around the wall
    assert len(reference) == 6
    above = [(0, 0), (0, 1)]  # straight above the wall, 2 cells away
    assert path_metrics(reference, above, grid, True, 1.5)["success"] == 0
    goal = (2, 0)
    reference = shortest_path(grid, (0, 2), goal)
    near = [(0, 2), (1, 2)]
    assert path_metrics(reference, near, grid, True, 2.5)["success"] == 1
    assert path_metrics(reference, near, grid, True, 2.5)["spl"] == 1
    assert strict_path_metrics((0, 2), goal, near, grid, True, 2.5)["success"] == 0


def test_strict_spl_counts_what_is_left_to_walk():
    grid = np.ones((1, 9), dtype=bool)
    detour = [(0, c) for c in (0, 1, 0, 1, 2, 3, 4, 5, 6, 7)]  # two steps lost, stops one early
    reference = [(0, c) for c in range(9)]
    assert path_metrics(reference, detour, grid, True, 1.5)["spl"] == pytest.approx(8 / 9)
    strict = strict_path_metrics((0, 0), (0, 8), detour, grid, True, 1.5)
    assert strict["spl"] == pytest.approx(8 / 10)
    whole = strict_path_metrics((0, 0), (0, 8), reference, grid, True, 1.5)
    assert whole == {"valid_path": 1.0, "success": 1.0, "spl": 1.0}


def test_edge_cases_of_the_published_metric():
    grid = np.ones((2, 2), dtype=bool)
    here = [(0, 0)]
    assert path_metrics(here, here, grid, True, 0.0)["spl"] == 1
    assert path_metrics(here, here, grid, True, 0.0, compat=True)["spl"] == 0
    nothing = dict.fromkeys(("valid_path", "success", "spl", "softspl"), 0)
    assert path_metrics(here, [], grid, True, 0.0) == nothing
    outside = path_metrics(here, [(0, 0), (-1, 0)], grid, True, 0.0)
    assert outside["valid_path"] == 1  # a step out of the grid cuts, but does not invalidate
    with pytest.raises(ValueError, match="finite coordinates"):
        path_metrics(here, [(float("nan"), 0)], grid, True, 0.0)
    with pytest.raises(ValueError, match="reference must hold"):
        path_metrics([], here, grid, True, 0.0)


def test_paths_and_grids_may_be_arrays_and_maps_of_characters():
    path = np.array([[1, 0], [0, 0]], dtype=np.uint8)
    walls = [["1", "0"], ["A", "0"]]
    assert path_metrics(path, path, walls, True, 0.0)["spl"] == 1
    assert path_metrics(path, path[::-1], walls, True, 0.0)["success"] == 0
    assert path_metrics(path, [(1, 0), (1, 1)], walls, True, 0.0)["valid_path"] == 0
    with pytest.raises(ValueError, match="start must be a free cell"):
        MazeEnv(np.array(walls), (0, 1), (1, 0))
    with pytest.raises(ValueError, match="grid must have rows and columns"):
        path_metrics(path, path, [1, 0], True, 0.0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 40))
def test_strict_success_implies_published_success_and_scores_lie_in_the_unit_interval(seed, steps):
    rng = np.random.default_rng(seed)
    grid = rng.random((5, 6)) < 0.7
    free = [tuple(map(int, cell)) for cell in np.argwhere(grid)]
    if not free:
        return
    start = free[int(rng.integers(len(free)))]
    reached = [tuple(map(int, c)) for c in np.argwhere(distances(grid, start) >= 0)]
    goal = reached[int(rng.integers(len(reached)))]
    env = MazeEnv(grid, start, goal)
    for move in rng.choice(MAZE_ACTIONS[:4], steps):
        env.step(str(move))
    env.step("stop")
    for radius in (0.0, 1.5):
        published = path_metrics(env.shortest, env.path, grid, True, radius)
        strict = strict_path_metrics(start, goal, env.path, grid, True, radius)
        assert strict["success"] <= published["success"]
        assert 0 <= strict["spl"] <= strict["success"]
        assert 0 <= published["spl"] <= published["success"]


@pytest.mark.parametrize(
    ("u", "v"), [((1, 0), (-1, 0)), ((2, 3), (-4, -6)), ((0.1, 0.3), (-0.3, -0.9))]
)
def test_antiparallel_directions_are_half_a_turn_apart(u, v):
    assert signed_angle(u, v) == 180
    if all(isinstance(x, int) for x in u):  # else the cross product is not quite 0
        assert signed_angle(u, v, compat=True) == 0


def test_fewer_steps_than_boxes_have_no_chance():
    assert [cswm_chance(n, n - 1) for n in range(1, 9)] == [0] * 8


def test_angles_do_not_wrap_around_with_small_integers():
    down, right = np.array([0, 1], dtype=np.uint8), np.array([1, 0], dtype=np.uint8)
    assert signed_angle(down, right) == -90


def test_angles_refuse_what_has_no_direction():
    with pytest.raises(ValueError, match="u must be"):
        signed_angle((0, 0), (1, 0))
    with pytest.raises(ValueError, match="v must be"):
        signed_angle((1, 0), (float("nan"), 0))


def test_our_parsers_read_what_the_official_one_breaks_on():
    nested = '{"answer": 2, "why": {"a": 1}}'
    assert (parse_answer(nested), official_answer(nested)) == (2, None)
    brace = '{"why": "a set {1}", "answer": 3}'
    assert (parse_answer(brace), official_answer(brace)) == (3, None)
    # and refuse what it makes up
    assert (parse_answer('{"answer": 2.7}'), official_answer('{"answer": 2.7}')) == (None, 2)
    assert (parse_answer('{"answer": true}'), official_answer('{"answer": true}')) == (None, 1)
    assert parse_answer('{"answer": 1} no, {"answer": "4"}') == 4
    assert parse_answer("") is None
    # a reply that never closes its brackets is no reason to stop
    assert official_answer('{"answer": ' + "[" * 5000 + "}") is None
    assert parse_action('{"action": "UP"}', MAZE_ACTIONS) == "up"
    assert parse_action('{"action": "jump"}', MAZE_ACTIONS) is None
    assert parse_action('{"action": "up"} {"action": "down"}', MAZE_ACTIONS) == "down"
    assert parse_box('{"action": "2"}') == 2
    assert parse_box("2") is None


def test_a_reply_cut_after_its_action_is_read():
    cut = '{"action": "Up", "target": "C", "reason": "the way'
    assert parse_action(cut, MAZE_ACTIONS) == "up"
    assert parse_action('{"action": "u', MAZE_ACTIONS) is None
    assert parse_action('{"why": "not \\"action\\": \\"up\\"', MAZE_ACTIONS) is None
    assert parse_box('{"action": 12, "reason": "') == 12
    assert parse_box('{"action": 12') is None  # the number itself may be cut
    assert parse_answer('{"answer": 2.7, "reason": "') is None
    # a whole object counts before a later one that was cut
    assert parse_answer('{"answer": 1} {"answer": "2", ') == 1


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.integers(-5, 50), st.text(alphabet='{}"\\ a', max_size=12))
def test_our_parser_finds_a_valid_object_after_any_text(before, number, reason):
    reply = before + "\n" + json.dumps({"reason": reason, "answer": number})
    # text before may hold an unfinished string or object, but no object with the key
    assert parse_answer(reply) in (None, number)
    if not set(before) & {"{", '"', "["}:
        assert parse_answer(reply) == number


def test_batched_mazes_step_as_single_ones():
    rng = np.random.default_rng(0)
    mazes = [carve_maze(rng, 9, 9) for _ in range(20)]
    ends = [far_ends(rng, maze) for maze in mazes]
    envs = [MazeEnv(maze, *end) for maze, end in zip(mazes, ends, strict=True)]
    batch = MazeBatch(np.stack(mazes), np.array([start for start, _ in ends]))
    for _ in range(60):
        moves = rng.integers(4, size=20)
        collided = batch.step(moves)
        for env, move in zip(envs, moves, strict=True):
            env.step(("up", "down", "left", "right")[move])
        assert batch.positions.tolist() == [list(env.position) for env in envs]
        assert collided.tolist() == [env.collided for env in envs]


@pytest.mark.parametrize("memory", ["none", "found", "full"])
@pytest.mark.parametrize("n", [3, 5, 7])
def test_many_games_of_boxes_follow_the_exact_probability(n, memory):
    games = 4000
    played = play_working_memory(n, games, memory, np.random.default_rng(n))
    exact = success_probability(n, memory)
    error = (exact * (1 - exact) / games) ** 0.5
    assert abs(played["success"].mean() - exact) <= 4 * error + 1e-12
    assert played["steps"].max() <= STEP_LIMITS[n]


@pytest.mark.parametrize("policy", [NoMemoryPolicy(), MemoryPolicy("found"), PerfectMemoryPolicy()])
def test_players_of_single_games_follow_the_exact_probability(policy):
    task = SpaceGameTask("cswm", episodes=300, difficulty="easy", seed=2)
    records = play_policy(task, policy)
    for n in (3, 4):
        values = [r.scores["ours"].value for r in records if r.labels["boxes"] == n]
        exact = success_probability(n, policy.memory)
        error = (exact * (1 - exact) / len(values)) ** 0.5
        assert abs(np.mean(values) - exact) <= 4 * error + 1e-12
    errors = [r.scores["ours"].parts for r in records]
    if policy.memory != "none":
        assert all(e["found_errors"] == 0 for e in errors)
    if policy.memory == "full":
        assert all(e["search_errors"] == 0 for e in errors)


def test_labels_change_after_every_step_and_carry_nothing():
    rng = np.random.default_rng(0)
    env = WorkingMemoryEnv(place_boxes(rng, 4), [0, 1, 2, 3], max_steps=4000)
    counts = np.zeros((4, 4))
    env.reset(rng)
    for _ in range(4000):
        counts[np.arange(4), env.labels] += 1
        env.step(env.labels[3])  # never the first treasure
    assert abs(counts / 4000 - 0.25).max() < 0.035


def test_boxes_are_never_adjacent():
    rng = np.random.default_rng(1)
    for n in STEP_LIMITS:
        boxes = np.array(place_boxes(rng, n))
        gaps = np.abs(boxes[:, None] - boxes).max(axis=2)[~np.eye(n, dtype=bool)]
        assert gaps.min() > 1
    with pytest.raises(ValueError, match="has no room for n=7"):
        place_boxes(rng, 7, shape=(3, 3))


def test_the_label_of_a_box_just_found_is_hidden():
    env = WorkingMemoryEnv([(0, 0), (2, 2), (4, 4)], [1, 0, 2])
    seen, _, _ = env.step(env.labels[1])
    assert seen.rows[2].split(",")[2] == "T"
    assert seen.collected == 1


@pytest.mark.parametrize(
    ("game", "policy", "success", "spl"),
    [
        ("mct", OraclePolicy(), 1, 1),
        ("route_retracing", OraclePolicy(), 1, 1),
        ("shortcut", OraclePolicy(), 1, 1),
        ("cswm", OraclePolicy(), 1, None),
        ("mct", WallFollower(), 1, None),
        ("mct", ZoneStopper(), 1, 1),
        ("route_retracing", ReplayRoute(), 1, 1),
        ("route_retracing", ZoneStopper(), 1, 1),
    ],
)
def test_scripted_players_score_what_is_known(game, policy, success, spl):
    records = play_policy(SpaceGameTask(game, episodes=4, difficulty="easy", seed=1), policy)
    for record in records:
        parts = record.scores["ours"].parts
        assert parts["success"] == success
        assert spl is None or parts["spl"] == pytest.approx(spl)
        assert parts["n_fallback"] == 0


def test_a_replayed_detour_is_no_shortcut():
    task = SpaceGameTask("shortcut", episodes=8, difficulty="easy", seed=1)
    replayed = [r.scores["ours"].parts for r in play_policy(task, ReplayRoute())]
    assert all(p["success"] == 1 and p["spl"] <= 1 / 1.4 + 1e-9 for p in replayed)


def test_stopping_beside_the_goal_behind_a_corner_fools_the_published_score_alone():
    env = DiscreteMapEnv(DiscreteMap(("0A1", "101", "111"), (0, 2), (1, 0)))
    act = ZoneStopper().start(env, [], np.random.default_rng(0))
    while not env.done:
        env.step(act())
    metrics = env.metrics()
    assert env.path == [(2, 0), (1, 0)]  # six steps short of the goal
    assert (metrics["success"], metrics["spl"]) == (1, 1)
    assert (metrics["strict_success"], metrics["strict_spl"]) == (0, 0)


def test_random_walks_hardly_succeed():
    task = SpaceGameTask("mct", episodes=40, difficulty="easy")
    scores = [r.scores["ours"].parts["success"] for r in play_policy(task, RandomPolicy())]
    assert np.mean(scores) < 0.1


OPEN = DiscreteMap(("A1", "11"), (1, 1), (0, 0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MazeEnv(CORNER, (0, 0), (1, 0)), "start must be a free cell"),
        (lambda: MazeEnv(CORNER, (1, 0), (9, 0)), "goal must be a free cell"),
        (lambda: MazeEnv(CORNER, (1, 0), (0, 1)), "no path leads"),
        (lambda: MazeEnv(CORNER, (1, 0), (2, 0)).step("jump"), "action must be one of"),
        (lambda: DiscreteMap(("01", "1"), (1, 0), (0, 1)), "rows must be strings of one length"),
        (lambda: DiscreteMap(("A0", "11"), (1, 0), (0, 0)), "start must be a free cell"),
        (lambda: DiscreteMapEnv(DiscreteMap(("A01",), (2, 0), (0, 0))), "no path leads"),
        (lambda: OPEN.view((0, 0), 4), "view must be odd"),
        (lambda: DiscreteMapEnv(OPEN).step("north"), "action must be one of"),
        (lambda: WorkingMemoryEnv([(0, 0), (2, 2)], [0, 1]), "max_steps must be given"),
        (lambda: WorkingMemoryEnv([(0, 0)] * 3, [0, 1, 2]), "distinct cells"),
        (lambda: WorkingMemoryEnv([(0, 0), (2, 2), (4, 4)], [0, 0, 1]), "permutation of 0..2"),
        (lambda: WorkingMemoryEnv([(0, 0), (2, 2), (4, 4)], [0, 1, 2]).step(7), "label must be"),
        (partial(cswm_chance, 8), "max_steps must be given"),
        (partial(success_probability, 3, "some"), "memory must be"),
        (partial(carve_maze, np.random.default_rng(0), 10, 11), "rows must be odd"),
        (partial(SpaceGameTask, "chess"), "name must be one of"),
        (partial(SpaceGameTask, "mct", episodes=0), "episodes must be >= 1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_walk_that_is_over_cannot_go_on():
    env = MazeEnv(CORNER, (1, 0), (2, 0))
    assert env.step("stop")[1]
    with pytest.raises(ValueError, match="the walk is over"):
        env.step("up")
