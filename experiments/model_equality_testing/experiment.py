"""What the cells of Model Equality Testing measure."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ritornello.common.chat import (
    CachedClient,
    ChatClient,
    Completion,
    FakeServer,
    GenerationParams,
    OpenAIClient,
    Prompt,
    ScriptedClient,
    check_server,
)
from ritornello.common.errors import UserError
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.model_equality_testing.figures import figures
from ritornello.experiments.model_equality_testing.markov import (
    MarkovModel,
    exact_hamming_mmd,
    sampler,
)
from ritornello.experiments.model_equality_testing.served import Served, Source
from ritornello.methods.model_equality_testing import (
    AuditSettings,
    CompletionSample,
    PowerEstimate,
    Statistic,
    audit_endpoint,
    estimate_power,
    pairwise_mmd,
    statistic_of,
)

__all__ = [
    "Distances",
    "EndpointAudit",
    "MarkovPower",
    "ModelPower",
    "PooledEndpoint",
    "RemoteEndpoint",
    "Unbiasedness",
    "figures",
]


def power_measurements(estimate: PowerEstimate, **coordinates: str) -> Iterator[Measurement]:
    """Power with its rejections as units, the Wilson interval, and the p-values."""
    rejections = estimate.rejections
    yield Measurement("power", estimate.power, samples=rejections, coordinates=coordinates)
    yield Measurement("power_low", estimate.low, coordinates=coordinates)
    yield Measurement("power_high", estimate.high, coordinates=coordinates)
    p = estimate.p_values.tolist()
    yield Measurement("p_value", sum(p) / len(p), samples=p, coordinates=coordinates)


@dataclass
class MarkovPower(Experiment):
    """Power on chains whose distribution is known, at the coordinates `alternative` and `length`.

    All tests see the same draws and permutations of a seed, and shorter lengths are cuts of the
    same chains: tests and lengths are paired.

    Attributes:
        prompts, symbols: of the chains.
        n_per_prompt: completions of each prompt and sample.
        shortest, longest: lengths between which the loss of power is judged.
        simulations, permutations, alpha: of the power estimate.
    """

    prompts: int
    symbols: int
    n_per_prompt: int
    shortest: int
    longest: int
    simulations: int
    permutations: int
    alpha: float

    def measure(self, arm: Statistic, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        length = int(cell.coordinates["length"])
        estimate = self._power(arm, cell, length)
        yield from power_measurements(estimate)
        if length == self.longest:
            short = self._power(arm, cell, self.shortest)
            # above 0: the longest completions keep more than that share of the shortest's power
            for share in (0.5, 0.75):
                kept = [
                    long - share * before
                    for long, before in zip(estimate.rejections, short.rejections, strict=True)
                ]
                name = f"power_minus_{share:g}_of_shortest"
                yield Measurement(name, sum(kept) / len(kept), samples=kept)

    def _power(self, arm: Statistic, cell: Cell, length: int) -> PowerEstimate:
        reference = MarkovModel.random(self.prompts, self.symbols, cell.seed)
        served = reference.altered(cell.coordinates["alternative"], cell.seed)
        return estimate_power(
            sampler(reference, length, self.longest),
            sampler(served, length, self.longest),
            self.n_per_prompt,
            self.alpha,
            self.simulations,
            statistic=arm,
            n_resamples=self.permutations,
            seed=cell.seed,
        )


@dataclass
class Unbiasedness(Experiment):
    """Error of the Hamming estimate against the exact distance, at the coordinates `alternative`
    and `length`.

    Attributes:
        prompts, symbols, n_per_prompt: as in `MarkovPower`.
        draws: independent estimates.
    """

    prompts: int
    symbols: int
    n_per_prompt: int
    draws: int

    def measure(self, arm: Statistic, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        length = int(cell.coordinates["length"])
        reference = MarkovModel.random(self.prompts, self.symbols, cell.seed)
        served = reference.altered(cell.coordinates["alternative"], cell.seed)
        exact = exact_hamming_mmd(reference, served, length)
        rng = np.random.default_rng([cell.seed, 2])
        n, errors = self.n_per_prompt, []
        for _ in range(self.draws):
            pair = reference.sample(n, rng, length), served.sample(n, rng, length)
            errors.append(statistic_of(*pair, arm) - exact)
        yield Measurement("mmd_error", sum(errors) / len(errors), samples=errors)
        yield Measurement("exact_mmd", exact)


@dataclass
class Pooled(Experiment):
    """Pools of completions of a language model, served as it is and in other ways.

    Attributes:
        source: where pools come from.
        alternatives: ways to serve it, by name.
        reference: the name of the one that should be served.
    """

    source: Source
    alternatives: dict[str, Served]
    reference: str

    def prepare(self) -> None:
        if self.reference not in self.alternatives:
            raise UserError(f"reference={self.reference!r} is none of {sorted(self.alternatives)}")
        for served in self.alternatives.values():
            served.prepare()
        for served in self.alternatives.values():
            self.source.draw(served)

    def pool(self, name: str) -> list[list[Completion]]:
        """The completions of one way to serve it."""
        return self.source.draw(self._served(name))

    def _served(self, name: str) -> Served:
        if name not in self.alternatives:
            raise UserError(f"alternative {name!r} is none of {sorted(self.alternatives)}")
        return self.alternatives[name]

    @cached_property
    def samples(self) -> dict[str, CompletionSample]:
        """All pools as codes."""
        return {name: self.source.sample(s) for name, s in self.alternatives.items()}


@dataclass
class ModelPower(Pooled):
    """Power on a language model by drawing from the pools without replacement, at the coordinates
    `alternative`, `length` and `n_per_prompt`.

    Attributes:
        simulations, permutations, alpha: of the power estimate.
    """

    simulations: int
    permutations: int
    alpha: float

    def measure(self, arm: Statistic, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        at = cell.coordinates
        self._served(str(at["alternative"]))
        pair = [
            self.samples[name].truncate(int(at["length"]))
            for name in (self.reference, str(at["alternative"]))
        ]
        estimate = estimate_power(
            pair[0],
            pair[1],
            int(at["n_per_prompt"]),
            self.alpha,
            self.simulations,
            statistic=arm,
            n_resamples=self.permutations,
            seed=cell.seed,
        )
        yield from power_measurements(estimate)


@dataclass
class Distances(Pooled):
    """MMD between all pools, with the coordinates `row` and `column`."""

    def measure(self, arm: Statistic, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        names = list(self.samples)
        matrix = pairwise_mmd([self.samples[name] for name in names], arm).tolist()
        for row, values in zip(names, matrix, strict=True):
            for column, value in zip(names, values, strict=True):
                yield Measurement("mmd", value, coordinates={"row": row, "column": column})


@dataclass(frozen=True)
class PooledEndpoint:
    """A server on this machine that answers over a real socket from the pool of an alternative."""

    alternative: str

    @contextmanager
    def client(
        self, pool: Callable[[str], list[list[Completion]]], prompts: list[Prompt], kept: Path
    ):
        """The client of the running server."""
        with FakeServer(replay(pool(self.alternative), prompts)) as server:
            # one request at a time: completions are handed out in the order of asking
            yield OpenAIClient(
                server.base_url, "served", max_concurrency=1, extra_capabilities=["prefill"]
            )


@dataclass(frozen=True)
class RemoteEndpoint:
    """An OpenAI-compatible endpoint; the key comes from the environment variable."""

    base_url: str
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    requests_per_minute: float | None = 60.0
    continues_prefill: bool = True

    def prepare(self) -> None:
        # before pools are drawn, which takes hours
        check_server(self._loader)

    @contextmanager
    def client(
        self, pool: Callable[[str], list[list[Completion]]], prompts: list[Prompt], kept: Path
    ):
        """The client; answers stay in the folder `kept`, so that a killed audit goes on."""
        yield CachedClient(self._loader(), kept / "answers.sqlite")

    @property
    def _loader(self) -> partial[OpenAIClient]:
        return partial(
            OpenAIClient,
            self.base_url,
            self.model,
            api_key_env=self.api_key_env,
            requests_per_minute=self.requests_per_minute,
            extra_capabilities=["prefill"] if self.continues_prefill else [],
        )


Endpoint = PooledEndpoint | RemoteEndpoint


def replay(pool: list[list[Completion]], prompts: list[Prompt]) -> ScriptedClient:
    """Answers each prompt with its completions in turn, never one twice."""

    def key(prompt: Prompt) -> object:
        return tuple(message.text for message in prompt.messages)

    waiting = {key(p): iter(c) for p, c in zip(prompts, pool, strict=True)}

    def reply(prompt: Prompt, params: GenerationParams) -> Completion:
        answer = next(waiting[key(prompt)], None)
        if answer is None:
            raise UserError("the pool is used up: raise per_prompt or lower the audit's size")
        return answer

    return ScriptedClient(reply, model_id="pool")


@dataclass
class EndpointAudit(Pooled):
    """Audits endpoints against the reference's pool, in the space of the pools.

    Attributes:
        n_per_prompt: completions of each prompt in each repeat.
        settings: of the audit; `repeats` x n_per_prompt completions a prompt are needed.
    """

    n_per_prompt: int
    settings: AuditSettings

    def measure(self, arm: Endpoint, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        prompts = self.source.asked()
        endpoint: AbstractContextManager[ChatClient] = arm.client(
            self.pool, prompts, context.scratch
        )
        with endpoint as client:
            report = audit_endpoint(
                client,
                replay(self.pool(self.reference), prompts),
                prompts,
                self.n_per_prompt,
                settings=self.settings,
                name=cell.arm,
                tokenizer=self._tokenize if self.source.characters is None else None,
            )
        p = report.p_values["reference"]
        rejections = [float(value <= report.alpha) for value in p]
        yield Measurement("rejection_rate", report.rejection_rate, samples=rejections)
        yield Measurement("flagged", float(report.flagged))
        yield Measurement("p_value", sum(p) / len(p), samples=p)
        statistics = report.statistics["reference"]
        yield Measurement("mmd", sum(statistics) / len(statistics), samples=statistics)

    def _tokenize(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    @cached_property
    def _tokenizer(self) -> Any:
        return self.source.tokenizer()
