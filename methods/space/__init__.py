"""SPACE: fifteen families of spatial tasks for language and vision models, and their scores."""

from ritornello.methods.space.analysis import RotationReport, rotation_report
from ritornello.methods.space.discrete_maps import DiscreteMap, DiscreteMapEnv
from ritornello.methods.space.games import GAMES, SpaceGameTask, play_policy
from ritornello.methods.space.geometry import signed_angle
from ritornello.methods.space.mazes import MazeEnv
from ritornello.methods.space.official import load_official
from ritornello.methods.space.parsing import official_action, official_answer
from ritornello.methods.space.paths import path_metrics, strict_path_metrics
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
from ritornello.methods.space.questions import QUESTION_TASKS, SpaceQATask, make_task
from ritornello.methods.space.working_memory import (
    WorkingMemoryEnv,
    cswm_chance,
    play_working_memory,
    success_probability,
)

__all__ = [
    "GAMES",
    "QUESTION_TASKS",
    "DiscreteMap",
    "DiscreteMapEnv",
    "MazeEnv",
    "MemoryPolicy",
    "NoMemoryPolicy",
    "OraclePolicy",
    "PerfectMemoryPolicy",
    "RandomPolicy",
    "ReplayRoute",
    "RotationReport",
    "SpaceGameTask",
    "SpaceQATask",
    "WallFollower",
    "WorkingMemoryEnv",
    "ZoneStopper",
    "cswm_chance",
    "load_official",
    "make_task",
    "official_action",
    "official_answer",
    "path_metrics",
    "play_policy",
    "play_working_memory",
    "rotation_report",
    "signed_angle",
    "strict_path_metrics",
    "success_probability",
]
