"""Questions to models and their scores; what several papers measure in the same way."""

from ritornello.common.evaluation.run import ask, evaluate, load_records, play, rescore
from ritornello.common.evaluation.sample import (
    Answer,
    Choice,
    ChoiceTarget,
    EvaluationError,
    ParserConfigError,
    Query,
    Record,
    RunMismatchError,
    Sample,
    SampleError,
    Score,
    TextTarget,
)
from ritornello.common.evaluation.task import EpisodeTask, Task

__all__ = [
    "Answer",
    "Choice",
    "ChoiceTarget",
    "EpisodeTask",
    "EvaluationError",
    "ParserConfigError",
    "Query",
    "Record",
    "RunMismatchError",
    "Sample",
    "SampleError",
    "Score",
    "Task",
    "TextTarget",
    "ask",
    "evaluate",
    "load_records",
    "play",
    "rescore",
]
