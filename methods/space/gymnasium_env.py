"""The three environments for reinforcement learning, with Gymnasium's interface."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ritornello.common.errors import UserError
from ritornello.methods.space.drawing import board_picture, map_picture, maze_picture
from ritornello.methods.space.mazes import MazeObservation
from ritornello.methods.space.policies import Env
from ritornello.methods.space.working_memory import BoxObservation, WorkingMemoryEnv

if TYPE_CHECKING:
    import gymnasium


def to_gymnasium(env: Env, *, px: int = 16) -> "gymnasium.Env":
    """An environment that gives pictures, and the text beside them in `info["text"]`.

    Actions are indices into `env.actions`, or the label of a box (from 0). The reward is SPL when a
    walk is stopped, and 1 for every treasure.

    Args:
        env: a maze, a map or boxes.
        px: pixels of a cell.

    Raises:
        UserError: gymnasium is not installed.
    """
    try:
        import gymnasium
        from gymnasium import spaces
    except ModuleNotFoundError as error:
        raise UserError("to_gymnasium needs gymnasium: pip install gymnasium") from error

    def picture(seen: Any) -> np.ndarray:
        if isinstance(seen, MazeObservation):
            return maze_picture(seen, px)
        return (
            board_picture(seen, px) if isinstance(seen, BoxObservation) else map_picture(seen, px)
        )

    class Wrapped(gymnasium.Env):
        def __init__(self) -> None:
            shape = picture(env.observe()).shape
            number = len(env.boxes if isinstance(env, WorkingMemoryEnv) else env.actions)
            self.action_space = spaces.Discrete(number)
            self.observation_space = spaces.Box(0, 255, shape, np.uint8)

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[np.ndarray, dict[str, Any]]:
            super().reset(seed=seed)
            seen = env.reset(self.np_random)
            return picture(seen), {"text": seen.text}

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            if isinstance(env, WorkingMemoryEnv):
                seen, done, info = env.step(int(action))
                reward, ended = float(seen.found is not None), seen.collected == len(env.boxes)
            else:
                seen, done, info = env.step(env.actions[int(action)])
                ended = env.stopped
                reward = env.metrics()["spl"] if done else 0.0
            return picture(seen), reward, ended, done and not ended, info | {"text": seen.text}

    return Wrapped()
