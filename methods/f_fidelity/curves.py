"""Removal curves: accuracy while elements are removed, most or least relevant first.

B inputs, S sizes, N mask samples, d elements of an input. A cell is an input at a size.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ritornello.methods.f_fidelity.masks import keyed_uniform
from ritornello.methods.f_fidelity.removal import (
    Inputs,
    RemovalSpec,
    count_removed,
    drop_probability,
    num_examples,
    take,
)

_UNIFORM_NUMBERS = 1 << 22  # held at once: 16 MiB, and several times that while they are made


@dataclass(frozen=True)
class Sampling:
    """How stochastic masks are drawn and judged; what each means says `removal_curve`."""

    n_samples: int = 50
    reduce: Literal["label", "prob"] = "label"
    generator: torch.Generator | None = None
    batch_size: int | None = None
    paired: bool | None = None
    seed: int = 0
    early_stop: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("n_samples", self.n_samples), ("batch_size", self.batch_size)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        if self.reduce not in ("label", "prob"):
            raise ValueError(f"reduce must be label or prob, got {self.reduce!r}")
        if self.early_stop is not None and not 1 < self.early_stop <= self.n_samples:
            raise ValueError(
                f"early_stop must be in [2, n_samples={self.n_samples}], got {self.early_stop}"
            )

    def rows(self, device: torch.device) -> int:
        """Masked inputs per forward on a device: larger ones fall out of a CPU's caches."""
        return self.batch_size or (32 if device.type == "cpu" else 2048)

    @property
    def keyed(self) -> bool:
        """Whether masks are a function of the seed, the input, the sample and the element."""
        return self.generator is None if self.paired is None else self.paired

    def seeded(self) -> "Sampling":
        """With the seed that a generator gives, where masks are keyed in spite of one."""
        if not self.keyed or self.generator is None:
            return self
        device = self.generator.device
        seed = torch.randint(1 << 62, (), generator=self.generator, device=device)
        return replace(self, seed=int(seed), generator=None)


def removal_curve(
    model: nn.Module,
    x: Inputs,
    y: Int[Tensor, " batch"],
    scores: Float[Tensor, "batch *grid"],
    sizes: Sequence[float],
    *,
    order: Literal["morf", "lerf"] = "morf",
    alpha: float | None = None,
    beta: float | None = None,
    n_samples: int = 50,
    reduce: Literal["label", "prob"] = "label",
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
    paired: bool | None = None,
    seed: int = 0,
    early_stop: int | None = None,
    removal: RemovalSpec | None = None,
    legacy_offset: bool = False,
) -> Float[Tensor, "batch points"]:
    """Accuracy of every input, clean and with its top (or bottom) ⌊s·d⌋ elements removed (sec. 3).

    Args:
        model: any classifier with (batch, classes) logits, or an output that has them as `.logits`;
            in evaluation mode, on the device of the inputs.
        x, y: inputs and labels; tokens are a mapping with `input_ids` (and `attention_mask`).
        scores: relevance of every element; ties go to the lower index in either order.
        sizes: increasing shares s in (0, 1].
        order: `morf`, the most relevant first; `lerf`, the least relevant first.
        alpha: probability with which each chosen element is dropped; None drops all (fidelity).
        beta: cap on the expected share of dropped elements; None for no cap (R-Fidelity).
        n_samples: N, masks per input and size.
        reduce: `label`, 1[argmax f = y]; `prob`, the softmax probability of y.
        generator: of the masks; torch's global one when None and `paired` is False.
        batch_size: masked inputs per forward; None for 32 on the CPU and 2048 elsewhere.
        paired: masks are keyed by input, sample and element, so that sizes, orders and explainers
            share them (common random numbers) and batching changes nothing. False: fresh masks for
            one input and one size at a time, in order, as the published code draws them. None:
            paired unless there is a generator.
        seed: of paired masks; drawn from the generator if there is one.
        early_stop: a quicker estimate. A cell whose first so many masks agree takes their answer,
            and so do all sizes between two such cells that agree with each other.
        removal: what an element is and what replaces it; pixels and zero unless given.
        legacy_offset: count as the published script does.

    Returns:
        float32 (batch, 1 + sizes): the clean value first. Its mean over inputs is the curve.

    Raises:
        ValueError: a bad shape or range, NaN scores, a model in training mode.
    """
    removal = removal or RemovalSpec()
    sampling = Sampling(n_samples, reduce, generator, batch_size, paired, seed, early_stop)
    check_arguments(model, x, y, scores, sizes, alpha, beta, removal)
    if order not in ("morf", "lerf"):
        raise ValueError(f"order must be morf or lerf, got {order!r}")
    elements = removal.removable(x).sum(1)
    shares = torch.tensor([float(s) for s in sizes], dtype=torch.float64, device=elements.device)
    counts = count_removed(shares, elements, legacy_offset=legacy_offset)
    clean = clean_values(model, x, y, sampling)
    curve = masked_values(model, x, y, scores, counts, order, alpha, beta, removal, sampling)
    return torch.cat([clean[:, None], curve], 1)


def removal_rank(
    scores: Float[Tensor, "batch *grid"], removable: Tensor, order: Literal["morf", "lerf"]
) -> Int[Tensor, "batch elements"]:
    """Place of every element in the order of removal, 0 first; what must stay comes last."""
    flat = scores.reshape(len(scores), -1)
    flat = flat if flat.is_floating_point() else flat.double()  # masks and ranks are scores too
    key = -flat if order == "morf" else flat
    key = key.masked_fill(~removable, torch.inf)
    # Scores of -inf or inf must not pass elements that may not be removed: sort those last, stably.
    first = key.argsort(dim=1, stable=True)
    second = (~removable).gather(1, first).long().argsort(dim=1, stable=True)
    places = torch.arange(flat.shape[1], device=flat.device).expand_as(first)
    return torch.empty_like(first).scatter_(1, first.gather(1, second), places)


@torch.no_grad()
def clean_values(
    model: nn.Module, x: Inputs, y: Tensor, sampling: Sampling
) -> Float[Tensor, " batch"]:
    """1_f(x) of every input."""
    size = sampling.rows(y.device)
    parts = [slice(i, i + size) for i in range(0, len(y), size)]
    return torch.cat([_judge(model, take(x, part), y[part], sampling.reduce) for part in parts])


@torch.no_grad()
def masked_values(
    model: nn.Module,
    x: Inputs,
    y: Int[Tensor, " batch"],
    scores: Float[Tensor, "batch *grid"],
    counts: Int[Tensor, "batch sizes"],
    order: Literal["morf", "lerf"],
    alpha: float | None,
    beta: float | None,
    removal: RemovalSpec,
    sampling: Sampling,
) -> Float[Tensor, "batch sizes"]:
    """Mean over masks, each of the first k elements in order dropped with q(s)."""
    removable = removal.removable(x)
    rank, limits = removal_rank(scores, removable, order).int(), counts.int()
    q = drop_probability(counts, removable.sum(1, keepdim=True), alpha, beta)
    certain = bool((q >= 1).all())
    samples = 1 if certain else sampling.n_samples
    (images, elements), num_sizes = rank.shape, counts.shape[1]
    numbers = samples * elements * (1 if sampling.keyed else num_sizes)
    group, sampling = max(1, _UNIFORM_NUMBERS // numbers), sampling.seeded()
    values = []
    for start in range(0, images, group):
        rows = torch.arange(start, min(start + group, images), device=rank.device)
        if certain:
            uniform = torch.zeros(len(rows), 1, 1, elements, device=rank.device)
        else:
            uniform = _uniform(rows, samples, elements, num_sizes, sampling)

        def answers(
            image: Tensor, size: Tensor, sample: Tensor, *, first: int = start, u: Tensor = uniform
        ) -> Tensor:
            """Of the judge, for cells and samples of the group."""
            at = image + first
            row = image * u.shape[1] + (size if u.shape[1] > 1 else 0)
            drawn = u.flatten(0, 2).index_select(0, row * u.shape[2] + sample)
            chosen = rank.index_select(0, at) < limits[at, size][:, None]
            keep = ~(chosen & (drawn <= q[at, size][:, None]))
            return _judge(model, removal.apply(take(x, at), keep), y[at], sampling.reduce)

        cells = _Cells(answers, sampling.rows(rank.device), rank.device)
        shape, first = (len(rows), num_sizes), sampling.early_stop
        if first is None or first >= samples:
            values.append(_full(cells, shape, samples))
        else:
            values.append(_quick(cells, shape, samples, first))
    return torch.cat(values)


@dataclass(frozen=True)
class _Cells:
    """Sums answers over samples, in flat batches over images, sizes and samples."""

    answers: Callable[[Tensor, Tensor, Tensor], Tensor]
    rows: int
    device: torch.device

    def total(
        self, image: Int[Tensor, " cells"], size: Int[Tensor, " cells"], samples: range
    ) -> Float[Tensor, " cells"]:
        """Sum over the samples of every cell."""
        found = []
        for i in range(0, len(image) * len(samples), self.rows):
            end = min(i + self.rows, len(image) * len(samples))
            flat = torch.arange(i, end, device=self.device)
            cell, sample = flat // len(samples), flat % len(samples) + samples.start
            found.append(self.answers(image[cell], size[cell], sample))
        if not found:
            return torch.zeros(0, device=self.device)
        return torch.cat(found).view(len(image), len(samples)).sum(1)


def _full(cells: _Cells, shape: tuple[int, int], samples: int) -> Float[Tensor, "images sizes"]:
    """All samples of all cells."""
    flat = torch.arange(shape[0] * shape[1], device=cells.device)
    found = cells.total(flat // shape[1], flat % shape[1], range(samples))
    return (found / samples).view(shape)


def _quick(
    cells: _Cells, shape: tuple[int, int], samples: int, first: int
) -> Float[Tensor, "images sizes"]:
    """As `_full`, with `first` samples where they agree, and none between sizes that agree."""
    mean = torch.full(shape, torch.nan, device=cells.device)
    for column, left, right in _bisection(shape[1]):
        low, high = mean[:, left], mean[:, right]
        agreed = (low == high) & ((low == 0) | (low == 1))  # NaN, not yet known, is never equal
        mean[:, column] = low
        image = (~agreed).nonzero()[:, 0]
        size = torch.full_like(image, column)
        found = cells.total(image, size, range(first))
        share = found / first
        undecided = (share > 1e-6) & (share < 1 - 1e-6)
        rest = cells.total(image[undecided], size[undecided], range(first, samples))
        share[undecided] = (found[undecided] + rest) / samples
        mean[image, column] = share
    return mean


def _bisection(sizes: int) -> Iterator[tuple[int, int, int]]:
    """Columns, each with two known neighbours: every fourth (its own), then those halfway."""
    known = sorted({*range(0, sizes, 4), sizes - 1})
    yield from ((column, column, column) for column in known)
    while len(known) < sizes:
        pairs = [(a, b) for a, b in pairwise(known) if b - a > 1]
        yield from (((a + b) // 2, a, b) for a, b in pairs)
        known = sorted({*known, *((a + b) // 2 for a, b in pairs)})


def _uniform(
    rows: Tensor, samples: int, elements: int, num_sizes: int, sampling: Sampling
) -> Float[Tensor, "batch sizes samples elements"]:
    if sampling.keyed:
        return keyed_uniform(sampling.seed, rows, samples, elements)[:, None]
    generator = sampling.generator
    device = torch.device("cpu") if generator is None else generator.device
    drawn = torch.empty(len(rows), num_sizes, samples, elements, device=device)
    for cell in drawn.flatten(0, 1):
        cell.copy_(torch.rand(samples, elements, generator=generator, device=device))
    return drawn.to(rows.device)


def predict(model: nn.Module, inputs: Inputs) -> Float[Tensor, "batch classes"]:
    """Logits of a classifier, plain or of transformers' kind."""
    output = model(inputs) if isinstance(inputs, Tensor) else model(**inputs)
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if logits is None:
        raise ValueError(
            "model must give logits, or an output that has them as .logits, "
            f"got {type(output).__name__}"
        )
    if logits.ndim != 2:
        raise ValueError(f"model must give (batch, classes) logits, got {tuple(logits.shape)}")
    return logits


def _judge(model: nn.Module, x: Inputs, y: Tensor, reduce: str) -> Tensor:
    logits = predict(model, x)
    if reduce == "label":
        return (logits.argmax(1) == y).float()
    return logits.float().softmax(1).gather(1, y[:, None])[:, 0]


def check_arguments(
    model: nn.Module,
    x: Inputs,
    y: Tensor,
    scores: Tensor,
    sizes: Sequence[float],
    alpha: float | None,
    beta: float | None,
    removal: RemovalSpec,
) -> None:
    """Refuses what has no meaning; warns where a ranking is undefined."""
    expected = (num_examples(x), *removal.grid(x))
    if tuple(scores.shape) != expected:
        raise ValueError(
            f"scores must have the shape {expected} (one per {removal.unit}), got "
            f"{tuple(scores.shape)}: sum over channels, or resize the maps to the inputs first"
        )
    if y.shape != expected[:1] or y.dtype.is_floating_point:
        raise ValueError(f"y must be ({expected[0]},) integers, got {tuple(y.shape)}")
    if not expected[0]:
        raise ValueError("x must hold at least one example")
    if bool(scores.isnan().any()):
        raise ValueError("scores must not be NaN")
    for name, share in (("alpha", alpha), ("beta", beta)):
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"{name} must be in (0, 1], got {share}")
    if alpha is None and beta is not None:
        raise ValueError("beta caps alpha: give alpha too")
    check_sizes(sizes)
    # A single layer left in training mode (batch norm, dropout) is enough to spoil a curve.
    if any(module.training for module in model.modules()):
        raise ValueError("model must be in evaluation mode: call model.eval()")
    flat = scores.reshape(len(scores), -1)
    constant = int((flat.amax(1) == flat.amin(1)).sum())
    if constant and flat.shape[1] > 1:
        warnings.warn(
            f"{constant} of {len(scores)} explanations are constant: their ranking is undefined "
            "and falls back to the order of elements",
            stacklevel=3,
        )


def check_sizes(sizes: Sequence[float]) -> None:
    """Refuses sizes that are not increasing shares in (0, 1]."""
    steps = [float(s) for s in sizes]
    if not steps or not all(0 < s <= 1 for s in steps) or steps != sorted(set(steps)):
        raise ValueError(f"sizes must be increasing shares in (0, 1], got {steps}")
