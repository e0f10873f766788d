"""Environments, metrics and parsers equal the official ones on every published value."""

import json

import numpy as np
import pytest

from ritornello.methods.space.discrete_maps import (
    DiscreteMap,
    DiscreteMapEnv,
    direction_from,
    swapped,
    walk_actions,
)
from ritornello.methods.space.drawing import maze_picture
from ritornello.methods.space.geometry import signed_angle
from ritornello.methods.space.mazes import MazeEnv
from ritornello.methods.space.parsing import official_action, official_answer
from ritornello.methods.space.paths import path_metrics
from ritornello.methods.space.working_memory import (
    WorkingMemoryEnv,
    cswm_chance,
    success_probability,
)

AGENTS = {
    "mct": "mct",
    "dmnav": "map",
    "egonav": "ego",
    "cswm_text": "cswm_text",
    "cswm_vision": "cswm_image",
}


@pytest.fixture
def values(golden):
    def read(name):
        return json.loads((golden / "space" / f"{name}.json").read_text())

    return read


def test_answers_are_read_as_the_official_parser_does(values):
    for case in values("qa_parse"):
        read = official_answer(case["text"])
        assert (read, type(read)) == (case["parsed"], type(case["parsed"])), case["text"]


def test_actions_are_read_as_the_five_official_parsers_do(values):
    for case in values("action_parse"):
        for column, agent in AGENTS.items():
            assert official_action(case["text"], agent) == case[column], (agent, case["text"])


def test_path_metrics(values):
    for case in values("path_efficiency"):
        grid = np.array(case["maze"]) == 1
        arguments = (case["gt"], case["pred"], grid, case["issued_stop"], case["dist_thresh"])
        expected = case["out"]
        assert path_metrics(*arguments) == pytest.approx(expected, abs=1e-9)
        assert path_metrics(*arguments, compat=True) == pytest.approx(expected, abs=1e-9)


def test_signed_angles(values):
    for case in values("signed_angle"):
        u, v = case["u"], case["v"]
        assert signed_angle(u, v, compat=True) == pytest.approx(case["deg"], abs=1e-9)
        opposite = u[0] * v[1] == u[1] * v[0] and u[0] * v[0] + u[1] * v[1] < 0
        expected = 180.0 if opposite else case["deg"]
        assert signed_angle(u, v) == pytest.approx(expected, abs=1e-9)


def test_maze_rollouts_and_pictures(values):
    for case in values("maze_rollouts"):
        env = MazeEnv(np.array(case["maze"]) == 1, tuple(case["start"]), tuple(case["goal"]))
        assert len(env.shortest) == case["shortest_len"]
        seen = env.observe()
        for step in case["rollout"]:
            if "action" in step:
                seen, _, _ = env.step(step["action"])
            assert ",".join(seen.rows) == ",".join(step["grid"])
            assert list(seen.position) == step["pos"]
            assert seen.collided == step["collided"] == step["collision_notice"]
        env.reset()
        px, rows, columns = case["image"]["px"], *env.grid.shape
        picture = maze_picture(env.observe(), px=px)
        assert list(picture.shape) == case["image"]["shape"]
        centres = picture[px // 2 : rows * px : px, px // 2 : columns * px : px]
        assert centres.tolist() == case["image"]["centres"]


def test_discrete_map_rollouts(values):
    for case in values("discrete_map_rollouts"):
        info = case["info"]
        world = DiscreteMap.from_info(info)
        assert world.landmarks == {k: tuple(v) for k, v in info["landmarks"].items()}
        assert world.sketch == {k: tuple(v) for k, v in case["map_sketch"].items()}
        # shortest paths are not unique: lengths are compared
        assert len(world.route()) == case["shortest_len"]
        walk = world.walkthrough
        assert len(walk_actions(walk)) == len(case["walkthrough_actions"])
        for cell, rows in ((walk[0], "walkthrough_first"), (walk[-1], "walkthrough_last")):
            assert [",".join(row) for row in world.view(cell)] == case[rows]
        a, b = world.landmarks["A"], world.landmarks["B"]
        angle = direction_from(world.start, a, b, compat=True)
        assert angle == pytest.approx(case["angle_A_to_B_from_start"], abs=1e-9)
        assert np.hypot(*np.subtract(a, b)) == pytest.approx(case["dist_A_B"], abs=1e-9)
        env = DiscreteMapEnv(world)
        seen = env.observe()
        steps = zip([None, *case["actions"]], case["observations"], case["positions"], strict=True)
        for action, expected, position in steps:
            if action is not None:
                seen, _, _ = env.step(action)
            assert list(seen.rows) == expected["grid"]
            assert list(seen.landmarks) == expected["landmarks_visible"]
            assert seen.collided == expected["collision_notice"]
            assert seen.at_goal == expected["goal_reached_notice"]
            assert swapped(env.position) == tuple(position)


class FixedPermutations:
    """In place of a generator: the published labels."""

    def __init__(self, permutations):
        self._left = iter(permutations)

    def permutation(self, n):
        return next(self._left)


def test_box_rollouts(values):
    for case in values("cswm_text_rollouts"):
        shape = (len(case["board"]), len(case["board"][0]))
        env = WorkingMemoryEnv(
            [(y, x) for x, y in case["boxes"]],
            case["treasures"],
            shape=shape,
            max_steps=case["max_steps"],
        )
        seen = env.reset(FixedPermutations(case["label_permutations"]))
        for step in case["steps"]:
            if "action" in step:
                seen, done, info = env.step(step["action"] - 1)
                assert done == step["done"]
                assert info["box"] == step["box"]
            assert list(seen.rows) == step["grid"]
            assert [seen.collected, case["n"]] == step["status"]
        assert env.steps == case["n_steps"]


def test_chance_of_boxes(values):
    published = values("cswm_chance")
    chances = []
    for n in range(3, 8):
        case = published[str(n)]
        chances.append(cswm_chance(n))
        assert chances[-1] == pytest.approx(case["success_prob"], abs=1e-12)
        assert success_probability(n, "none") == pytest.approx(case["success_prob"], abs=1e-12)
        worst = case["perfect_memory_worst_case_steps"]
        assert success_probability(n, "full", worst) == pytest.approx(1)
        assert success_probability(n, "full", worst - 1) < 1
    assert 100 * np.mean(chances) == pytest.approx(published["mean_success_percent"], abs=1e-9)
