"""The interactive tasks: mazes, maps and boxes, turn by turn (sec. 4, 6)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from ritornello.common.chat import Completion, GenerationParams, Message, Prompt, Text
from ritornello.common.evaluation import Answer, Query, Record, Sample, Score
from ritornello.methods.space.discrete_maps import Cell, DiscreteMapEnv
from ritornello.methods.space.drawing import board_picture, map_picture, maze_picture, png
from ritornello.methods.space.item import Difficulty, Presentation
from ritornello.methods.space.layouts import make_world, walk_frames
from ritornello.methods.space.mazes import MazeEnv, MazeObservation, carve_maze, far_ends
from ritornello.methods.space.parsing import (
    official_action,
    official_falls_back,
    parse_action,
    parse_box,
)
from ritornello.methods.space.policies import Env, Policy
from ritornello.methods.space.prompts import (
    BOX_NUMBERS_FROM_ZERO,
    NEXT_ACTION,
    WALK_ANSWER,
    WALK_NOTED,
    WALK_SHOWN,
    joined,
    load_prompt,
)
from ritornello.methods.space.questions import PUBLISHED_PARAMS, check_task
from ritornello.methods.space.walks import GridWalk
from ritornello.methods.space.working_memory import BoxObservation, WorkingMemoryEnv, place_boxes

# name → published name
_PUBLISHED = {
    "mct": "MCT",
    "cswm": "CSWM",
    "route_retracing": "RouteRetracing",
    "shortcut": "ShortcutDiscovery",
}
GAMES = tuple(_PUBLISHED)
# messages kept of the dialog, besides what every prompt begins with
HISTORY = {"mct": 20, "cswm": None, "route_retracing": 50, "shortcut": 50}
_MAZE_SIDES = {"easy": 11, "medium": 21, "hard": 31}
_BOXES = {"easy": (3, 4), "medium": (3, 4, 5, 6, 7), "hard": (6, 7)}


@dataclass
class GameState:
    """One running episode.

    Attributes:
        env: the environment.
        shown: the walk that was shown, as (x, y); empty without one.
        rng: its random numbers, and those of fallbacks.
        head: what every prompt begins with.
        pairs: observation and reply, turn by turn.
        asked_walk: the walkthrough still waits for the model's comment.
        n_fallback: replies that could not be read, or named nothing that can be done.
        n_differ: replies which our parser and the published one read differently.
    """

    env: Env
    shown: list[Cell]
    rng: np.random.Generator
    head: list[Message]
    pairs: list[tuple[Message, Message]] = field(default_factory=list)
    asked_walk: bool = False
    actions: list[str | int] = field(default_factory=list)
    n_fallback: int = 0
    n_differ: int = 0


@dataclass
class SpaceGameTask:
    """One interactive task, for `play`.

    An unreadable reply does what the published loop does (up; for boxes the first one, or a random
    one if the number is not on the board) and is counted in `n_fallback`.

    Args:
        game: mct, cswm, route_retracing or shortcut, or its published name.
        presentation, seed, difficulty: as in `make_task`.
        episodes: how many; of cswm the numbers of boxes take turns.
        compat: read replies with the published parser.
        history: messages of the dialog that are kept; None keeps all.
        max_characters: the oldest turns are dropped while the prompt's text is longer; None keeps
            them (the published loop drops at 0.9 of the context, counted in tokens).
        max_steps: actions of an episode; None is the published number.
        comment: let the model comment on the walkthrough before it walks.
        params: decoding of every turn.
        prefill: how every reply begins, for models that do not keep to a format.
        prompts_dir: a folder of instructions that replace ours.
    """

    game: str
    presentation: Presentation = "text"
    episodes: int = 10
    seed: int = 0
    difficulty: Difficulty = "medium"
    compat: bool = False
    history: int | Literal["published"] | None = "published"
    max_characters: int | None = None
    max_steps: int | None = None
    comment: bool = True
    params: GenerationParams = PUBLISHED_PARAMS
    prefill: str = ""
    prompts_dir: str | Path | None = None

    def __post_init__(self) -> None:
        self.game = check_task(self.game, self.presentation, self.difficulty, _PUBLISHED)
        if self.episodes < 1:
            raise ValueError(f"episodes must be >= 1, got {self.episodes}")

    @property
    def name(self) -> str:
        """space/<game>/<presentation>."""
        return f"space/{self.game}/{self.presentation}"

    @cached_property
    def _instruction(self) -> str:
        extra = BOX_NUMBERS_FROM_ZERO if self._first_box == 0 else ""
        return load_prompt(self.game, self.presentation, self.prompts_dir) + extra

    @property
    def _first_box(self) -> int:
        return 0 if self.game == "cswm" and self.presentation == "image" else 1

    def spoken(self, state: GameState, action: str | int) -> str | int:
        """An action as a model would name it: a box by the number that it shows."""
        if isinstance(state.env, WorkingMemoryEnv):
            return state.env.labels[int(action)] + self._first_box
        return action

    @cached_property
    def _samples(self) -> list[Sample]:
        labels = {"task": self.game, "difficulty": self.difficulty}
        return [
            Sample(
                f"{self.game}-{self.presentation}-{self.difficulty}-{self.seed}-{index}",
                labels=labels | self._labels(index),
                meta={"index": index},
            )
            for index in range(self.episodes)
        ]

    def samples(self) -> list[Sample]:
        """One sample per episode; the stimulus is drawn by `reset`."""
        return self._samples

    def reset(self, sample: Sample) -> GameState:
        """The environment of an episode, and the walk that the task shows first, if any."""
        rng = np.random.default_rng([self.seed, sample.meta["index"], *self.game.encode()])
        env = self._env(rng, sample)
        head = [Message.system(self._instruction)]
        state = GameState(env, [], rng, head)
        if isinstance(env, DiscreteMapEnv):
            retrace = self.game == "route_retracing"
            state.shown = env.world.route() if retrace else env.world.walkthrough
            frames = walk_frames(env.world, state.shown, self.presentation)
            parts = [Text(WALK_SHOWN)]
            for frame in frames:
                parts += [Text(f"\n\n{frame}")] if isinstance(frame, str) else [png(frame)]
            state.asked_walk = self.comment
            ask = f"\n\n{WALK_NOTED}" if self.comment else ""
            head.append(Message.user(joined([*parts, Text(ask)])))
            if not self.comment:
                head.append(Message.assistant(WALK_ANSWER))
        env.reset(rng)
        return state

    def finished(self, state: GameState) -> bool:
        """Whether the episode is over: stopped, solved or out of steps."""
        return state.env.done

    def render(self, state: GameState) -> Query:
        """The dialog so far, within the limits on history and length, and the present view."""
        if state.asked_walk:
            return Query(list(state.head), self.params)
        kept = state.pairs
        if self._kept is not None:
            kept = kept[len(kept) - min(len(kept), self._kept // 2) :]
        turn = self._shown(state.env)
        now = Message.user(joined([*turn.parts, Text(f"\n{NEXT_ACTION}")]))
        messages = [*state.head, *(message for pair in kept for message in pair)]
        if self.max_characters is not None:
            first = len(state.head)
            while len(messages) > first and _length([*messages, now]) > self.max_characters:
                del messages[first : first + 2]
        return Query(Prompt((*messages, now), prefill=self.prefill), self.params)

    def step(self, state: GameState, completion: Completion) -> GameState:
        """Reads the reply and acts; a reply to the walk that was shown is only remembered."""
        if state.asked_walk:
            state.head.append(Message.assistant(completion.text))
            state.asked_walk = False
            return state
        # the line that asks for an action is not kept in the dialog
        shown, reply = self._shown(state.env), self.prefill + completion.text
        if isinstance(state.env, WorkingMemoryEnv):
            label = self._read_box(state, state.env, reply)
            state.env.step(label)
            state.actions.append(label)
        else:
            move = self._read_move(state, state.env, reply)
            state.env.step(move)
            state.actions.append(move)
        state.pairs.append((shown, Message.assistant(reply)))
        return state

    def answer(self, state: GameState) -> Mapping[str, Answer]:
        """The actions taken, the environment's metrics, and how many replies needed a fallback."""
        counts = {"n_fallback": state.n_fallback, "n_differ": state.n_differ}
        return {"ours": Answer({"actions": state.actions, **state.env.metrics(), **counts})}

    def score(self, sample: Sample, answer: Answer) -> Score:
        """SPL of a walk and success with boxes; everything else beside it."""
        if answer.value is None:
            return Score(0.0)
        figures = {k: float(v) for k, v in answer.value.items() if k != "actions"}
        return Score(figures["success" if self.game == "cswm" else "spl"], parts=figures)

    @property
    def _kept(self) -> int | None:
        return HISTORY[self.game] if self.history == "published" else self.history

    def _labels(self, index: int) -> dict[str, int]:
        if self.game != "cswm":
            return {}
        sizes = _BOXES[self.difficulty]
        return {"boxes": sizes[index % len(sizes)]}

    def _env(self, rng: np.random.Generator, sample: Sample) -> Env:
        limit: dict[str, int] = {} if self.max_steps is None else {"max_steps": self.max_steps}
        if self.game == "mct":
            side = _MAZE_SIDES[self.difficulty]
            grid = carve_maze(rng, side, side)
            return MazeEnv(grid, *far_ends(rng, grid), **limit)
        if self.game == "cswm":
            n = int(sample.labels["boxes"])
            order = [int(box) for box in rng.permutation(n)]
            return WorkingMemoryEnv(place_boxes(rng, n), order, max_steps=self.max_steps)
        return DiscreteMapEnv(make_world(rng, self.difficulty), **limit)

    def _shown(self, env: Env) -> Message:
        seen = env.observe()
        if self.presentation == "text":
            return Message.user(seen.text)
        if isinstance(seen, MazeObservation):
            return Message.user((png(maze_picture(seen, px=48)),))
        if isinstance(seen, BoxObservation):
            return Message.user((png(board_picture(seen, px=48)),))
        return Message.user((png(map_picture(seen)), Text(f"The goal is {seen.goal}.")))

    def _read_move(self, state: GameState, env: GridWalk, reply: str) -> str:
        """The move that a reply stands for; whatever had to be put in its place is counted."""
        agent = "mct" if self.game == "mct" else "map"
        ours = parse_action(reply, env.actions) or "up"
        official = str(official_action(reply, agent) or "up")
        state.n_differ += ours != official
        if self.compat:
            state.n_fallback += official_falls_back(reply, agent)
        else:
            state.n_fallback += parse_action(reply, env.actions) is None
        return official if self.compat else ours

    def _read_box(self, state: GameState, env: WorkingMemoryEnv, reply: str) -> int:
        """The label, from 0, of the box that a reply stands for; counts as `_read_move`."""
        agent = "cswm_image" if self._first_box == 0 else "cswm_text"
        read, official = parse_box(reply), int(official_action(reply, agent) or 0)
        ours = self._first_box if read is None else read
        state.n_differ += ours != official
        missing = official_falls_back(reply, agent) if self.compat else read is None
        label = (official if self.compat else ours) - self._first_box
        outside = not 0 <= label < len(env.boxes)
        state.n_fallback += missing or outside
        return int(state.rng.integers(len(env.boxes))) if outside else label


def _length(messages: Sequence[Message]) -> int:
    return sum(len(message.text) for message in messages)


def play_policy(task: SpaceGameTask, policy: Policy) -> list[Record]:
    """Plays every episode with a scripted policy; its actions go through replies and the parser."""
    records = []
    for sample in task.samples():
        state = task.reset(sample)
        if state.asked_walk:
            state = task.step(state, Completion(WALK_ANSWER))
        act = policy.start(
            state.env, state.shown, np.random.default_rng([task.seed, sample.meta["index"], 1])
        )
        while not task.finished(state):
            reply = json.dumps({"action": task.spoken(state, act())}, indent=1)
            state = task.step(state, Completion(reply))
        answers = task.answer(state)
        scores = {name: task.score(sample, answer) for name, answer in answers.items()}
        records.append(Record(sample.id, "", answers, scores, labels=sample.labels))
    return records
