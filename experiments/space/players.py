"""Who answers and plays: models behind a chat client, and scripts of known score."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from ritornello.common.chat import (
    CachedClient,
    ChatClient,
    GenerationParams,
    ScriptedClient,
    TransformersClient,
    check_server,
)
from ritornello.common.errors import UserError
from ritornello.common.evaluation import Record, Sample, Task, evaluate, play
from ritornello.common.evaluation.baselines import (
    Policy,
    fixed_slot,
    frequency,
    oracle,
    saying,
    scripted,
    uniform,
)
from ritornello.common.evaluation.permutation import Permuted
from ritornello.methods.space.games import SpaceGameTask, play_policy
from ritornello.methods.space.policies import Policy as GamePolicy
from ritornello.methods.space.questions import PUBLISHED_PARAMS, SpaceQATask, make_task


@dataclass
class LanguageModel:
    """A model, by the likelihood of option numbers or by what it writes.

    Args:
        client: makes the chat client: a local model, an endpoint, vLLM.
        stimuli, large_scale_stimuli: how many it is asked; None: as many as the part says.
        episodes: how many it plays, by game; of games not named as many as the part says.
        mode: how questions are answered.
        max_tokens, temperature: of everything it writes.
        prefill: how its replies begin in games.
        history: messages of a game's dialog that it sees; "published" for the published number.
        comment: lets it comment on a walkthrough first.
        compat: read its actions with the published parser.
        block: questions asked at a time; 4 lets the rotations of one share its computation.
    """

    client: Callable[[], ChatClient]
    stimuli: int | None = None
    large_scale_stimuli: int | None = None
    episodes: Mapping[str, int] = field(default_factory=dict)
    mode: Literal["generate", "likelihood"] = "generate"
    max_tokens: int = PUBLISHED_PARAMS.max_tokens
    temperature: float = PUBLISHED_PARAMS.temperature
    prefill: str = ""
    history: int | Literal["published"] | None = "published"
    comment: bool = True
    compat: bool = False
    block: int = 256

    @cached_property
    def _client(self) -> ChatClient:
        return self.client()

    def prepare(self) -> None:
        # before any cell: every one of them would wait for a server that is not there
        check_server(self.client)

    def settings(self, seed: int) -> dict[str, Any]:
        """Keyword arguments for a question task."""
        return {"mode": self.mode, "params": self._params(seed)}

    def answer(self, task: Task, seed: int, scratch: Path) -> list[Record]:
        client = CachedClient(self._client, scratch / "answers.sqlite")
        return evaluate(task, client, block=self.block)

    def play(self, seed: int, scratch: Path, **world: Any) -> list[Record]:
        task = SpaceGameTask(
            **world,
            seed=seed,
            params=self._params(seed),
            prefill=self.prefill,
            history=self.history,
            comment=self.comment,
            compat=self.compat,
        )
        return play(task, CachedClient(self._client, scratch / "answers.sqlite"))

    def _params(self, seed: int) -> GenerationParams:
        return GenerationParams(max_tokens=self.max_tokens, temperature=self.temperature, seed=seed)


@dataclass
class ScriptedAnswers:
    """A script that answers questions.

    Args:
        policy: "oracle", "random", "first", "frequency" (the most frequent right slot of the very
            questions) or "refuser".
        awkward: wrap the answer in one of eight forms which a reader understands.
        stimuli, large_scale_stimuli: as for a model.
    """

    policy: Literal["oracle", "random", "first", "frequency", "refuser"]
    awkward: bool = False
    stimuli: int | None = None
    large_scale_stimuli: int | None = None

    def __post_init__(self) -> None:
        accepted = ("oracle", "random", "first", "frequency", "refuser")
        if self.policy not in accepted:
            raise UserError(f"policy must be one of {accepted}, got {self.policy!r}")

    def settings(self, seed: int) -> dict[str, Any]:
        return {"mode": "generate"}

    def answer(self, task: Task, seed: int, scratch: Path) -> list[Record]:
        return evaluate(task, self._client(task, seed))

    def _client(self, task: Task, seed: int) -> ScriptedClient:
        if self.policy == "refuser":
            return saying()
        policies: dict[str, Callable[[], Policy]] = {
            "oracle": lambda: oracle,
            "random": lambda: uniform(seed),
            "first": lambda: fixed_slot(0),
            "frequency": lambda: frequency(task.samples()),
        }
        write = awkward_reply if self.awkward else plain_reply
        return scripted(task, policies[self.policy](), write=write, name=self.policy)


@dataclass
class ScriptedPlayer:
    """A script that plays games; `episodes` as of a model."""

    policy: GamePolicy
    episodes: Mapping[str, int] = field(default_factory=dict)

    def play(self, seed: int, scratch: Path, **world: Any) -> list[Record]:
        return play_policy(SpaceGameTask(**world, seed=seed, comment=False), self.policy)


def local_client(
    model: Callable[[], Any],
    tokenizer: Callable[[], Any],
    *,
    max_batch_rows: int = 32,
    max_batch_tokens: int = 2048,
) -> TransformersClient:
    """A local text model; arms and parts of one process that load the same one share it.

    The questions about layouts are thousands of tokens long: few of them in memory at a time.
    """
    key = repr((model, tokenizer, max_batch_rows, max_batch_tokens))
    if key not in _LOADED:
        _LOADED[key] = TransformersClient(
            model(),
            tokenizer(),
            max_batch_rows=max_batch_rows,
            max_batch_tokens=max_batch_tokens,
            pack_weights=False,
        )
    return _LOADED[key]


_LOADED: dict[str, TransformersClient] = {}


def question_task(family: str, presentation: str, stimuli: int, **settings: Any) -> Permuted:
    """One family in all rotations of its options; arms share the questions."""
    difficulty, seed = settings.get("difficulty", "medium"), settings.get("seed", 0)
    if settings.get("data") is None:
        settings["data"] = _generated(family, presentation, stimuli, seed, difficulty)
    return Permuted(SpaceQATask(family, presentation, stimuli, **settings))


@lru_cache(maxsize=32)
def _generated(*arguments: Any) -> tuple[Sample, ...]:
    return tuple(make_task(*arguments))


def plain_reply(sample: Sample, picked: Sequence[int]) -> str:
    """A reply as the prompt asks for."""
    return json.dumps({"answer": picked[0] + 1})


_FORMS = (
    '{{"answer": {n}}}',
    'The best option is this one: {{"answer": "{n}"}}.',
    '```json\n{{\n  "answer": {n}\n}}\n```',
    '{{"answer": {n}.0}}',
    '{{"answer": {n}}}}}',
    '{{"reasoning": "options 1 to 4 as a set: {{1, 2, 3, 4}}", "answer": {n}}}',
    '{{"answer": {n}, "confidence": {{"value": 0.9}}}}',
    '{{{{"answer": {n}}}}}',
)


def awkward_reply(sample: Sample, picked: Sequence[int]) -> str:
    """One of eight forms by turns: the published parser reads the first five."""
    index = int(sample.id.split("/")[0].rpartition("-")[2])
    return _FORMS[index % len(_FORMS)].format(n=picked[0] + 1)
