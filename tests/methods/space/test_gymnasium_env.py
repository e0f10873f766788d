"""The environments keep Gymnasium's contract; without Gymnasium it is said what to install."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest

from ritornello.common.errors import UserError
from ritornello.methods.space import DiscreteMapEnv, MazeEnv, WorkingMemoryEnv
from ritornello.methods.space.gymnasium_env import to_gymnasium
from ritornello.methods.space.layouts import make_world
from ritornello.methods.space.mazes import carve_maze, far_ends
from ritornello.methods.space.working_memory import place_boxes

installed = pytest.mark.skipif(find_spec("gymnasium") is None, reason="needs gymnasium")


def environments():
    rng = np.random.default_rng(0)
    maze = carve_maze(rng, 7, 7)
    yield MazeEnv(maze, *far_ends(rng, maze))
    yield DiscreteMapEnv(make_world(rng, "easy"))
    yield WorkingMemoryEnv(place_boxes(rng, 4), [2, 0, 1, 3])


def test_without_gymnasium_the_command_to_install_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UserError, match="pip install gymnasium"):
        to_gymnasium(next(environments()))


@installed
@pytest.mark.parametrize("env", list(environments()), ids=lambda env: type(env).__name__)
def test_the_contract_is_kept(env):
    from gymnasium.utils.env_checker import check_env

    check_env(to_gymnasium(env), skip_render_check=True)


@installed
def test_rewards_are_spl_and_treasures():
    maze, _, boxes = environments()
    env = to_gymnasium(maze)
    env.reset(seed=0)
    names = {(-1, 0): "up", (1, 0): "down", (0, -1): "left", (0, 1): "right"}
    rewards = []
    for (r1, c1), (r2, c2) in zip(maze.shortest, maze.shortest[1:], strict=False):
        rewards.append(env.step(maze.actions.index(names[r2 - r1, c2 - c1]))[1])
    _, last, terminated, truncated, _ = env.step(maze.actions.index("stop"))
    assert rewards == [0.0] * (len(maze.shortest) - 1)
    assert (last, terminated, truncated) == (1.0, True, False)
    env = to_gymnasium(boxes)
    env.reset(seed=0)
    total = 0.0
    while boxes.collected < 4:
        total += env.step(boxes.labels[boxes.treasures[boxes.collected]])[1]
    assert total == 4
