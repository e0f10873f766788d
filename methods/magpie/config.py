"""Everything a data set depends on besides the models, checked before anything is sampled."""

from dataclasses import dataclass
from typing import Literal

from ritornello.methods.magpie.filters import FILTERS, filter_rows
from ritornello.methods.magpie.sanitizer import Compat, Family
from ritornello.methods.magpie.tags import TASKS, Task


@dataclass(frozen=True)
class MagpieConfig:
    """Everything a data set depends on besides the models.

    Args:
        n: queries to sample.
        seed: of all draws.
        system: system turn of step 1: "default", None, or a text that steers the domain.
        temperature, top_p, max_new_tokens, stop_at_newline, first_token_temperature,
            banned_first_ids: of step 1, see `MagpieGenerator`.
        response_tokens: budget of an answer.
        turns: rounds of conversation.
        family: whose run-on habits the sanitiser assumes; None leaves queries as sampled.
        compat: "fixed" or "official" sanitiser.
        tags: label tasks, of "difficulty", "quality", "classification".
        tagger: "judge" reads the judge's JSON, "likelihood" compares the labels' probabilities.
        dedup_threshold: squared distance below which queries are repeats.
        filter: a name in `FILTERS`.
        keep_longest: most rows to keep, by response length; None keeps all.
        preference_k: answers per row for preference pairs; 0 makes none.
        preference_temperature: of those answers.
        chunk: rows between two entries in a stage's journal.
    """

    n: int = 1000
    seed: int = 0
    system: str | None = "default"
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 2048
    stop_at_newline: bool = True
    first_token_temperature: float | None = None
    banned_first_ids: tuple[int, ...] = ()
    response_tokens: int = 2048
    turns: int = 1
    family: Family | None = "llama-3"
    compat: Compat = "fixed"
    tags: tuple[Task, ...] = ("difficulty", "quality", "classification")
    tagger: Literal["judge", "likelihood"] = "judge"
    dedup_threshold: float = 0.05
    filter: str = "notebook"
    keep_longest: int | None = None
    preference_k: int = 0
    preference_temperature: float = 0.8
    chunk: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", tuple(self.tags))
        object.__setattr__(self, "banned_first_ids", tuple(self.banned_first_ids))
        if self.n < 1 or self.chunk < 1 or self.turns < 1:
            raise ValueError(
                f"n, chunk and turns must be >= 1, got {self.n}, {self.chunk} and {self.turns}"
            )
        if unknown := [task for task in self.tags if task not in TASKS]:
            raise ValueError(f"tags must be among {sorted(TASKS)}, got {unknown}")
        if self.tagger not in ("judge", "likelihood"):
            raise ValueError(f"tagger must be 'judge' or 'likelihood', got {self.tagger!r}")
        if self.filter not in FILTERS:
            raise ValueError(f"filter must be one of {sorted(FILTERS)}, got {self.filter!r}")
        if self.preference_k == 1 or self.preference_k < 0:
            raise ValueError(f"preference_k must be 0 or >= 2, got {self.preference_k}")


def check_filter(config: MagpieConfig, reward: bool, reward_difference: bool) -> None:
    """Tries the filter on a row that has every field which the stages will make."""
    row: dict[str, object] = {TASKS[task].field: TASKS[task].labels[-1] for task in config.tags}
    row |= {"instruction": "x", "conversation_id": "x", "min_similar_conversation_id": None}
    row |= {"min_neighbor_distance": 1.0} | ({"instruct_reward": 1.0} if reward else {})
    row |= {"reward_difference": 1.0} if reward and reward_difference else {}
    try:
        filter_rows([row], config.filter)
    except ValueError as error:
        raise ValueError(
            f"filter={config.filter!r} cannot be applied: {error}; tags={list(config.tags)} make "
            "labels, reward makes instruct_reward, base_responder makes reward_difference"
        ) from error
