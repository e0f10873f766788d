"""What the cells of Probe Pruning measure."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ritornello.common.data import commonsense, text_windows
from ritornello.common.errors import UserError
from ritornello.common.evaluation.multiple_choice import score_choices
from ritornello.common.models.hub import check_architecture
from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.experiments.probe_pruning.agreement import Agreement
from ritornello.experiments.probe_pruning.figures import figures
from ritornello.methods.probe_pruning import (
    ProbePruningConfig,
    PrunedModel,
    prune_model,
    select_probe,
    unwrap,
)
from ritornello.methods.probe_pruning.architecture import take_apart
from ritornello.methods.probe_pruning.flops import LayerShape, count_flops
from ritornello.methods.probe_pruning.selection import (
    effective_ratio,
    num_channels_to_prune,
    num_heads_to_prune,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Commonsense", "CountedCost", "Perplexity", "figures"]

# One model a process, shared by the parts: one for each would not fit the GPU.
_LOADED: "WeakValueDictionary[str, PreTrainedModel]" = WeakValueDictionary()


@dataclass
class Calibrated(Experiment):
    """A language model, and the history of its dense self on calibration text.

    Attributes:
        model, tokenizer: called when they are needed.
        calibration_text: one text, or documents of which the long ones are used.
        calibration_samples: windows of calibration.
        tokens: length of a window.
        batch_size: samples that are pruned together, in calibration too.
    """

    model: Callable[[], "PreTrainedModel"]
    tokenizer: Callable[[], Any]
    calibration_text: Callable[[], str | list[str]]
    calibration_samples: int
    tokens: int
    batch_size: int

    def prepare(self) -> None:
        """Fetches and cuts the texts, and looks at the model's architecture."""
        self._calibration_ids(seed=0)
        check_architecture(self.model, take_apart)

    @cached_property
    def language_model(self) -> "PreTrainedModel":
        """The dense model, loaded at first use and pruned by one arm after another."""
        name = repr(self.model)
        loaded = _LOADED.get(name)
        return _LOADED.setdefault(name, self.model()) if loaded is None else loaded

    @cached_property
    def vocabulary(self) -> Any:
        """Its tokenizer."""
        return self.tokenizer()

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory:
        return tempfile.TemporaryDirectory(prefix="probe-pruning-")

    @contextmanager
    def pruned(self, arm: ProbePruningConfig, seed: int) -> Iterator[PrunedModel]:
        """The model under an arm, calibrated; whole again afterwards."""
        history = self._history(arm, seed) if arm.reads_history else None
        pruned = prune_model(self.language_model, arm)
        try:
            if history is not None and pruned.layers:
                pruned.load_history(history)
            yield pruned
        finally:
            unwrap(pruned)

    def _history(self, arm: ProbePruningConfig, seed: int) -> Path:
        """A history with all that any score reads, made once for all arms of a process."""
        skipped = "-".join(map(str, arm.skip_layers))
        path = Path(self._folder.name) / f"{skipped}.{arm.legacy_flap}.{seed}.safetensors"
        if not path.exists():
            everything = ProbePruningConfig(
                ratio=arm.ratio,
                method="static",
                score="flap",
                skip_layers=arm.skip_layers,
                legacy_flap=arm.legacy_flap,
            )
            pruned = prune_model(self.language_model, everything)
            try:
                pruned.calibrate(self._calibration_ids(seed).split(self.batch_size))
                pruned.save_history(path)
            finally:
                unwrap(pruned)
        return path

    def _calibration_ids(self, seed: int) -> Int[Tensor, "samples tokens"]:
        text = self.calibration_text()
        if isinstance(text, str):
            return text_windows(
                text,
                self.vocabulary,
                tokens=self.tokens,
                windows=self.calibration_samples,
                order="random",
                seed=seed,
            )
        return document_windows(
            text, self.vocabulary, tokens=self.tokens, windows=self.calibration_samples, seed=seed
        )


@dataclass
class Perplexity(Calibrated):
    """Perplexity of a text, batch after batch, with what was kept and how long it took.

    Attributes:
        text: what is scored; the coordinate `place` says where in it, as a share.
        batches: how many; None for as many whole batches as the text has tokens for.
        order: windows follow one another or lie at random offsets.
        agreement: compare the kept channels with full-batch probing, in the first batch.
    """

    text: Callable[[], str]
    batches: int | None
    order: Literal["consecutive", "random"]
    agreement: bool

    def prepare(self) -> None:
        self.text()
        super().prepare()
        self._windows(place=0.0, seed=0)

    def measure(
        self, arm: ProbePruningConfig, cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        at = cell.coordinates
        arm = replace(arm, ratio=at["ratio"])
        if "probe_tokens" in at:
            probe = {"tokens": at["probe_tokens"], "samples": at["probe_samples"]}
            arm = replace(arm, probe_ratios=probe)
        batches = self._windows(float(at["place"]), cell.seed).split(self.batch_size)
        losses: list[float] = []
        seconds: list[float] = []
        with self.pruned(arm, cell.seed) as pruned:
            compare = self.agreement and arm.method in ("probe", "static") and bool(pruned.layers)
            for number, ids in enumerate(batches):
                watch = Agreement(pruned) if compare and number == 0 else None
                started = time.perf_counter()
                logits = self._logits(pruned, ids)
                seconds.append(time.perf_counter() - started)
                losses += window_losses(logits, ids)
                del logits
                if watch is not None:
                    yield from watch.measurements(context.artifacts)
            cost = pruned.flops(self.batch_size, self.tokens)
        mean = sum(losses) / len(losses)
        yield Measurement(
            "perplexity",
            value=float(torch.tensor(mean, dtype=torch.float64).exp()),
            samples=losses,
            aggregate="exp_mean",
        )
        middle = sum(seconds) / len(seconds)
        yield Measurement("forward_seconds", middle, unit="s", samples=seconds)
        yield Measurement("tokens_per_second", self.batch_size * self.tokens / middle, unit="1/s")
        yield Measurement("probe_flops_share", cost.probe_share)
        yield Measurement("flops_share", cost.pruned_share + cost.probe_share)

    def _windows(self, place: float, seed: int) -> Int[Tensor, "windows tokens"]:
        text, count = self.text(), self.batches
        if count is None:
            ids = self.vocabulary(text, add_special_tokens=False)["input_ids"]
            count = max(1, len(ids) // self.tokens // self.batch_size)
        return text_windows(
            text,
            self.vocabulary,
            tokens=self.tokens,
            windows=count * self.batch_size,
            start=place,
            order=self.order,
            seed=seed,
        )

    @torch.no_grad()
    def _logits(self, pruned: PrunedModel, ids: Tensor) -> Float[Tensor, "batch tokens words"]:
        device = pruned.model.device
        logits = pruned(input_ids=ids.to(device), use_cache=False).logits
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return logits


@dataclass
class Commonsense(Calibrated):
    """Zero-shot accuracy on a multiple-choice task, the coordinate `task`.

    Attributes:
        tasks: all values of the coordinate, fetched before the first cell.
        paths: hub id or local folder of a task, where it is not the usual hub id.
        max_tokens: longest pair of context and choice.
        limit: only so many questions; None for all.
    """

    tasks: list[str]
    paths: dict[str, str | None]
    max_tokens: int
    limit: int | None

    def prepare(self) -> None:
        for task in self.tasks:
            commonsense.commonsense_questions(task, self.paths.get(task))
        super().prepare()

    def measure(
        self, arm: ProbePruningConfig, cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        task = str(cell.coordinates["task"])
        questions = commonsense.commonsense_questions(task, self.paths.get(task))[: self.limit]
        arm = replace(arm, ratio=cell.coordinates["ratio"])
        with self.pruned(arm, cell.seed) as pruned:
            scores = score_choices(
                pruned,
                self.vocabulary,
                questions,
                batch_size=self.batch_size,
                max_tokens=min(self.max_tokens, self.tokens),
                device=pruned.model.device,
            )
        for name, right in (("accuracy", scores.accuracy), ("accuracy_norm", scores.normalised)):
            yield Measurement(name, right.mean().item(), samples=right.tolist())


@dataclass
class CountedCost(Experiment):
    """FLOPs at the paper's own size, counted: nothing is run.

    Attributes:
        layers, dim, heads, key_value_heads, hidden: of the model.
        batch_size, tokens: of a batch.
    """

    layers: int
    dim: int
    heads: int
    key_value_heads: int
    hidden: int
    batch_size: int
    tokens: int

    def measure(
        self, arm: ProbePruningConfig, cell: Cell, context: CellContext
    ) -> Iterator[Measurement]:
        head_dim = self.dim // self.heads
        shape = LayerShape(
            self.dim, self.dim, self.key_value_heads * head_dim, self.hidden, gated=True
        )
        ratio = effective_ratio(arm.ratio, self.layers, len(arm.skip_layers))
        heads = self.heads - num_heads_to_prune(self.heads, ratio)
        channels = self.hidden - num_channels_to_prune(self.hidden, ratio, arm.multiple)
        pruned = [n for n in range(self.layers) if n not in arm.skip_layers]
        blank = torch.zeros(self.batch_size, self.tokens, 1)
        taken = select_probe(blank, blank, arm.probe_ratios, arm.order)[0].shape
        cost = count_flops(
            shape,
            dict.fromkeys(pruned, (heads * head_dim, channels)),
            self.layers,
            self.batch_size,
            self.tokens,
            (taken[0], taken[1]),
        )
        yield Measurement("probe_flops_share", cost.probe_share)
        yield Measurement("flops_share", cost.pruned_share + cost.probe_share)


def window_losses(
    logits: Float[Tensor, "batch tokens words"], ids: Int[Tensor, "batch tokens"]
) -> list[float]:
    """Mean next-token loss of every window; one at a time, since logits are large."""
    return [
        torch.nn.functional.cross_entropy(row[:-1].float(), target[1:].to(row.device)).item()
        for row, target in zip(logits, ids, strict=True)
    ]


def document_windows(
    documents: list[str], tokenizer: Callable[..., Any], *, tokens: int, windows: int, seed: int
) -> Int[Tensor, "windows tokens"]:
    """One random window of every document that is long enough, in random order of documents.

    Raises:
        UserError: too few documents are.
    """
    generator = torch.Generator().manual_seed(seed)
    found: list[Tensor] = []
    for number in torch.randperm(len(documents), generator=generator).tolist():
        ids = torch.tensor(tokenizer(documents[number])["input_ids"])
        if len(ids) > tokens:
            start = int(torch.randint(len(ids) - tokens, (), generator=generator))
            found.append(ids[start : start + tokens])
        if len(found) == windows:
            return torch.stack(found)
    raise UserError(
        f"calibration_samples={windows} windows of tokens={tokens} were asked for, "
        f"but only {len(found)} of {len(documents)} documents are that long"
    )
