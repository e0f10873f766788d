"""Scripted players with known scores: oracle, chance, memory, wall following, replaying a route."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ritornello.methods.space.discrete_maps import Cell, DiscreteMapEnv, walk_actions
from ritornello.methods.space.mazes import MazeEnv
from ritornello.methods.space.paths import MOVES, actions_of, distances, shortest_path
from ritornello.methods.space.walks import GridWalk
from ritornello.methods.space.working_memory import Memory, WorkingMemoryEnv

Env = MazeEnv | DiscreteMapEnv | WorkingMemoryEnv
Act = Callable[[], str | int]


class Policy(Protocol):
    """A player. `start` returns a function that gives the next action whenever it is called."""

    def start(self, env: Env, shown: list[Cell], rng: np.random.Generator) -> Act:
        """Begins an episode; `shown` is the walk that was shown, and boxes are named by index."""
        ...


@dataclass(frozen=True)
class OraclePolicy:
    """Knows everything: the shortest path, the box that holds the treasure."""

    def start(self, env: Env, shown: list[Cell], rng: np.random.Generator) -> Act:
        """Next the box with the treasure, or the next move of the shortest path."""
        if isinstance(env, WorkingMemoryEnv):
            return lambda: env.treasures[env.collected]
        return _along(actions_of(env.shortest))


@dataclass(frozen=True)
class RandomPolicy:
    """Uniform over the moves, stopping with probability `stop`; a uniform box."""

    stop: float = 0.05

    def start(self, env: Env, shown: list[Cell], rng: np.random.Generator) -> Act:
        """Draws every action anew from `rng`."""
        if isinstance(env, WorkingMemoryEnv):
            return lambda: int(rng.integers(len(env.boxes)))
        moves = list(MOVES)
        return lambda: "stop" if rng.random() < self.stop else moves[int(rng.integers(4))]


@dataclass(frozen=True)
class MemoryPolicy:
    """Opens a uniform box of those it does not remember to be useless now.

    Args:
        memory: "none", boxes whose treasure is gone ("found"), or also those seen empty in the
            present search ("full").
    """

    memory: Memory = "full"

    def start(self, env: Env, shown: list[Cell], rng: np.random.Generator) -> Act:
        """Draws boxes from `rng` and remembers what `env` shows of them.

        Raises:
            ValueError: the environment has no boxes.
        """
        if not isinstance(env, WorkingMemoryEnv):
            raise ValueError(f"MemoryPolicy plays with boxes, got {type(env).__name__}")
        found: set[int] = set()
        empty: set[int] = set()

        def act() -> int:
            if env.found is not None:
                found.add(env.found)
                empty.clear()
            elif env.opened:
                empty.add(env.opened[-1])
            useless = {"none": set(), "found": found, "full": found | empty}[self.memory]
            left = [box for box in range(len(env.boxes)) if box not in useless]
            return left[int(rng.integers(len(left)))]

        return act


class PerfectMemoryPolicy(MemoryPolicy):
    """Remembers everything: needs at most n(n + 1) / 2 steps."""

    def __init__(self) -> None:
        super().__init__("full")


class NoMemoryPolicy(MemoryPolicy):
    """Remembers nothing: succeeds with `cswm_chance`."""

    def __init__(self) -> None:
        super().__init__("none")


@dataclass(frozen=True)
class WallFollower:
    """Keeps its right hand on the wall and stops on the goal; solves every perfect maze."""

    def start(self, env: Env, shown: list[Cell], rng: np.random.Generator) -> Act:
        """Walks by the right-hand rule.

        Raises:
            ValueError: the environment is not one to walk in.
        """
        walk = _walker(env)
        clockwise = ["up", "right", "down", "left"]
        heading = 0

        def act() -> str:
            nonlocal heading
            if walk.position == walk.shortest[-1]:
                return "stop"
            for turn in (1, 0, 3, 2):  # right, straight on, left, back
                name = clockwise[(heading + turn) % 4]
                if walk.is_free(name):
                    heading = (heading + turn) % 4
                    return name
            return "stop"

        return act


@dataclass(frozen=True)
class ReplayRoute:
    """Walks exactly what was shown, then stops."""

    def start(self, env: Env, shown: list[Cell], rng: np.random.Generator) -> Act:
        """Repeats the moves of `shown`.

        Raises:
            ValueError: no walk was shown.
        """
        if not shown:
            raise ValueError(
                "ReplayRoute needs a task that shows a walk: route_retracing, shortcut"
            )
        return _along(walk_actions(shown))


@dataclass(frozen=True)
class ZoneStopper:
    """Stops on the nearest cell that is close enough to the goal as the crow flies.

    It exploits the published score: the wall between does not matter, and SPL is 1.
    """

    def start(self, env: Env, shown: list[Cell], rng: np.random.Generator) -> Act:
        """Walks to the cell with the fewest steps among those within the goal's radius.

        Raises:
            ValueError: the environment is not one to walk in.
        """
        walk = _walker(env)
        start, goal = walk.shortest[0], walk.shortest[-1]
        steps = distances(walk.grid, start)
        near = [
            (int(steps[r, c]), (int(r), int(c)))
            for r, c in np.argwhere(steps >= 0)
            if math.dist((r, c), goal) <= walk.radius
        ]
        return _along(actions_of(shortest_path(walk.grid, start, min(near)[1])))


def _walker(env: Env) -> GridWalk:
    if isinstance(env, WorkingMemoryEnv):
        raise ValueError("this policy walks; boxes are opened by OraclePolicy or MemoryPolicy")
    return env


def _along(actions: list[str]) -> Act:
    left = iter([*actions, "stop"])
    return lambda: next(left)
