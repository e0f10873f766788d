"""How a benchmark is written.

A question travels

    Sample --render--> Query --client--> Completion | ContinuationScores --parse--> Answer
           --score--> Score --journal--> Record

and a task says the four steps. `parse` returns *readings* by name: always "ours"; also "official"
where the paper's own code reads an answer otherwise, so that every report shows both.

>>> from ritornello.common.chat import GenerationParams, Message, ScriptedClient, Text
>>> from ritornello.common.evaluation import Answer, Query, Sample, Score, TextTarget, evaluate
>>> class Sums:
...     name = "sums"
...     def samples(self):
...         return [Sample("1+1", (Text("1+1"),), target=TextTarget(("2",)))]
...     def render(self, sample):
...         return Query([Message.user(f"{sample.text} = ?")], GenerationParams(max_tokens=8))
...     def parse(self, sample, response):
...         return {"ours": Answer(response.text.strip()) if response.text else Answer.unparsed()}
...     def score(self, sample, answer):
...         return Score(float(answer.value in sample.target.accepted))
>>> client = ScriptedClient(lambda prompt, params: " 2", model_id="two")
>>> [record.scores["ours"].value for record in evaluate(Sums(), client)]
[1.0]

A query with `continuations` has them scored instead of generating: `parse` then gets
`ContinuationScores`. What `evaluate` and `play` (run.py) do for every task, so that a task need
not:

* A failed request becomes `Answer(status="error")`, one that the server refused "refused", and an
  answer that was cut by its token budget and could not be parsed "truncated". `parse` is only
  called when there is something to read. An error scores 0 and is not counted; `score` is called
  for every other status, so it must take an answer whose value is None.
* Questions are rendered and asked in blocks, so that a large benchmark never lies in memory.
* With `journal=path` every finished question is on disk at once; the same call continues from
  there, asks again only what ended in "error", and refuses a journal of another task, model or
  set of questions. Answers of a client that is wrapped in `CachedClient` survive as well, which is
  how a half-played episode is replayed to where it broke off.

An *episode* is a question of many calls: the task keeps a state per sample. All running episodes
of a block advance together, one call each a round, so a batching client is used fully.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ritornello.common.chat.protocol import Completion
from ritornello.common.evaluation.sample import Answer, Query, Sample, Score

State = TypeVar("State")


class Task(Protocol):
    """A benchmark of single questions. Constructing it is cheap; `samples` may load or generate."""

    name: str

    def samples(self) -> Sequence[Sample]:
        """The questions, the same ones in the same order at every call."""
        ...

    def render(self, sample: Sample) -> Query:
        """What the model is asked."""
        ...

    def parse(self, sample: Sample, response: Any) -> Mapping[str, Answer]:
        """The readings of an answer: "ours", and "official" where it differs."""
        ...

    def score(self, sample: Sample, answer: Answer) -> Score:
        """How good one reading is."""
        ...


class EpisodeTask(Protocol[State]):
    """A benchmark of environments: many calls per question."""

    name: str

    def samples(self) -> Sequence[Sample]:
        """The questions, the same ones in the same order at every call."""
        ...

    def reset(self, sample: Sample) -> State:
        """The state before the first call."""
        ...

    def finished(self, state: State) -> bool:
        """Whether nothing more is asked."""
        ...

    def render(self, state: State) -> Query:
        """What the model is asked now."""
        ...

    def step(self, state: State, completion: Completion) -> State:
        """The state after the model's reply, also an empty or refused one (never a failed one)."""
        ...

    def answer(self, state: State) -> Mapping[str, Answer]:
        """The readings of a finished episode; what was done may be their value."""
        ...

    def score(self, sample: Sample, answer: Answer) -> Score:
        """How good one reading is."""
        ...
