"""Part C: language models with and without the new router, on clean and on attacked text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from ritornello.common.moe import RoutingState
from ritornello.common.moe.statistics import load
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.ac_router.corpus import Corpus, Vocabulary, streams
from ritornello.experiments.ac_router.fine_tuning import FineTuning
from ritornello.experiments.ac_router.measurements import curve, routing
from ritornello.experiments.ac_router.routers import Routers, total_balance_loss
from ritornello.methods.ac_router.language_model import LanguageModelOutput, MoELanguageModel
from ritornello.methods.ac_router.word_swap import word_swap


class Streams(nn.Module):
    """A language model with the cached hidden states of the texts it reads side by side.

    The cache is part of the state, so that an interrupted run continues with it.
    """

    cache: Tensor

    def __init__(self, model: MoELanguageModel, count: int) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("cache", torch.stack(model.empty_cache(count)))

    def forward(self, tokens: Tensor, rows: slice, *, first: bool) -> LanguageModelOutput:
        """Reads the next segment of some of the texts; `first` begins them anew."""
        past = [torch.zeros_like(c[rows]) if first else c[rows] for c in self.cache]
        output = self.model(tokens, past)
        for cache, new in zip(self.cache, output.cache, strict=True):
            cache[rows] = new.detach()
        return output


@dataclass
class LanguageModel(Experiment):
    """Trains a language model and measures perplexity, clean and after word swaps.

    Attributes:
        corpus: gives the texts; a `_partial_` node.
        unit: `byte` or `word` tokens.
        pattern: the architecture, see `MoELanguageModel`, like `d_model` .. `dropout`.
        segment: tokens read at a time.
        batch_size: texts read side by side, in `accumulate` groups per optimiser step.
        steps: optimiser steps.
        learning_rate: of Adam, after `warmup_steps` of linear warm-up.
        balance_weight: of the balance loss; the official code's never acts.
        swap_rate: share of content words replaced in the attacked text.
        test_segments: most segments of `eval_batch_size` texts that are scored; None scores all.
        eval_batch_size: texts scored side by side.
        checkpoint_every: steps between checkpoints.
        device: `cpu`, `cuda` or `auto`.
        precision: Lightning's name.
        clip_norm: largest gradient norm; None clips nothing.
        fine_tuning: sets of labelled texts the trained model is then fine-tuned on; None for none.
    """

    corpus: Callable[[], Corpus]
    unit: str = "byte"
    pattern: str = "sgsgsc"
    d_model: int = 128
    hidden: int = 128
    num_heads: int = 8
    num_experts: int = 16
    span: int = 256
    dropout: float = 0.1
    segment: int = 256
    batch_size: int = 96
    accumulate: int = 1
    steps: int = 1000
    learning_rate: float = 7e-4
    warmup_steps: int = 0
    balance_weight: float = 0.0
    swap_rate: float = 0.025
    test_segments: int | None = None
    eval_batch_size: int = 8
    checkpoint_every: int = 100
    device: str = "cpu"
    precision: str = "32-true"
    clip_norm: float | None = None
    fine_tuning: FineTuning | None = None

    def __post_init__(self) -> None:
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size={self.batch_size} must be a multiple of accumulate, "
                f"got {self.accumulate}"
            )

    def prepare(self) -> None:
        """Fetches and cuts the texts: one that is too short is told before the first cell."""
        _, train, test, _ = self.texts
        streams(train, self.batch_size, self.segment)
        streams(test, self.eval_batch_size, self.segment)
        if self.fine_tuning is not None:
            self.fine_tuning.prepare()

    @cached_property
    def texts(self) -> tuple[Vocabulary, Tensor, Tensor, Tensor]:
        """Vocabulary; training, test and attacked test tokens."""
        corpus = self.corpus()
        vocabulary = Vocabulary.of(corpus.train, self.unit)
        attacked = word_swap(corpus.test, self.swap_rate, generator=Generator().manual_seed(0))
        return vocabulary, *(vocabulary.encode(t) for t in (corpus.train, corpus.test, attacked))

    def build(self, arm: Routers) -> MoELanguageModel:
        """The untrained model of an arm."""
        return MoELanguageModel(
            len(self.texts[0]),
            arm.pattern(self.pattern),
            arm.gate,
            arm.adaptive_gate,
            d_model=self.d_model,
            hidden=self.hidden,
            num_heads=self.num_heads,
            num_experts=self.num_experts,
            span=self.span,
            dropout=self.dropout,
        )

    def measure(self, arm: Routers, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Trains with the arm's routers; yields the curve, perplexities, routing, accuracies."""
        from ritornello.common.models.hub import resolve_device
        from ritornello.common.training import fit
        from ritornello.experiments.ac_router.training import Training

        vocabulary, train, test, attacked = self.texts
        torch.manual_seed(cell.seed)
        model = self.build(arm)
        training = Training(
            Streams(model, self.batch_size),
            self._loss,
            steps=self.steps,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
        )
        device = resolve_device(self.device)
        run = partial(
            fit,
            seed=cell.seed,
            checkpoint_every=self.checkpoint_every,
            accelerator="gpu" if device.type == "cuda" else "cpu",
            precision=self.precision,
            clip_norm=self.clip_norm,
        )
        losses = run(
            training,
            self._reader(streams(train, self.batch_size, self.segment)),
            steps=self.steps,
            scratch=context.scratch,
            accumulate=self.accumulate,
        ).losses
        yield from curve(losses, context)
        model = model.to(device).eval()
        for metric, text in (("perplexity", test), ("attacked_perplexity", attacked)):
            scores, states = self._score(model, text)
            value = float(np.exp(np.mean(scores)))
            yield Measurement(metric, value, samples=scores, aggregate="exp_mean")
            if metric == "perplexity":
                yield from routing(states, self.num_experts)
                loads = torch.stack([load(s.indices, self.num_experts) for s in states])
                np.savez_compressed(context.artifacts / "routing.npz", load=loads.cpu().numpy())
        if self.fine_tuning is not None:
            yield from self.fine_tuning.measure(
                model, vocabulary, run, seed=cell.seed, scratch=context.scratch
            )

    def _reader(self, texts: Tensor) -> Callable[[int], tuple[Tensor, int, bool]]:
        """Batch number → tokens of one group of texts, its first row, whether they begin."""
        segments = (texts.shape[1] - 1) // self.segment
        group = self.batch_size // self.accumulate

        def read(number: int) -> tuple[Tensor, int, bool]:
            segment = number // self.accumulate % segments
            row = number % self.accumulate * group
            begin = segment * self.segment
            return texts[row : row + group, begin : begin + self.segment + 1], row, segment == 0

        return read

    def _loss(self, model: nn.Module, batch: tuple[Tensor, int, bool]) -> Tensor:
        tokens, row, first = batch
        rows = slice(int(row), int(row) + len(tokens))
        output = model(tokens[:, :-1], rows, first=bool(first))
        loss = functional.cross_entropy(output.logits.flatten(0, 1), tokens[:, 1:].flatten())
        if self.balance_weight:
            loss = loss + self.balance_weight * total_balance_loss(model, output.states)
        return loss

    @torch.no_grad()
    def _score(
        self, model: MoELanguageModel, text: Tensor
    ) -> tuple[list[float], list[RoutingState]]:
        """Mean loss of every segment of every text, and the last segment's routing states."""
        texts = streams(text, self.eval_batch_size, self.segment).to(model.positions.device)
        segments = (texts.shape[1] - 1) // self.segment
        if self.test_segments is not None:
            segments = min(segments, self.test_segments)
        cache, scores, states = None, [], []
        for number in range(segments):
            begin = number * self.segment
            tokens = texts[:, begin : begin + self.segment + 1]
            logits, cache, states = model(tokens[:, :-1], cache)
            losses = functional.cross_entropy(
                logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none"
            )
            scores += losses.view(len(texts), -1).mean(1).tolist()
        return scores, states
