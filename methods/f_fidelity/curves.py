"""Removal curves: accuracy while elements are removed, most or least relevant first.

B inputs, S sizes, N mask samples, d elements of an input.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
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


@dataclass(frozen=True)
class Sampling:
    """How stochastic masks are drawn and judged.

    Attributes:
        n_samples: N, masks per input and size.
        reduce: `label`, 1[argmax f = y]; `prob`, the softmax probability of y.
        seed: of the masks. They are keyed by image, sample and element, so that sizes, orders and
            explainers share them (common random numbers) and batching changes nothing.
        generator: draws fresh masks from it instead, one input and one size at a time in order, as
            the published code does.
        early_stop: stop after so many samples where they all agree. Values move by less than
            1/(early_stop + 1); off by default.
        batch_size: masked inputs per forward; None for 64 on the CPU, where larger ones fall out of
            its caches, and 2048 elsewhere.
    """

    n_samples: int = 50
    reduce: Literal["label", "prob"] = "label"
    seed: int = 0
    generator: torch.Generator | None = None
    early_stop: int | None = None
    batch_size: int | None = None

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
        """Masked inputs per forward on a device."""
        return self.batch_size or (64 if device.type == "cpu" else 2048)


def removal_curve(
    model: nn.Module,
    inputs: Inputs,
    labels: Int[Tensor, " batch"],
    scores: Float[Tensor, "batch *grid"],
    sizes: Sequence[float],
    *,
    order: Literal["morf", "lerf"] = "morf",
    alpha: float | None = None,
    beta: float | None = None,
    removal: RemovalSpec | None = None,
    sampling: Sampling | None = None,
    legacy_offset: bool = False,
) -> Float[Tensor, "batch points"]:
    """Accuracy of every input, clean and with its top (or bottom) ⌊s·d⌋ elements removed (sec. 3).

    Args:
        model: any classifier with (batch, classes) logits, or an output that has them as `.logits`;
            in evaluation mode, on the device of the inputs.
        inputs: a tensor, or a mapping with `input_ids` (and `attention_mask`) for tokens.
        labels: y.
        scores: relevance of every element, of the shape `removal.grid(inputs)`; ties go to the
            lower index in either order.
        sizes: increasing shares s in (0, 1].
        order: `morf` removes the most relevant first, `lerf` the least relevant.
        alpha: probability with which each chosen element is dropped; None drops all (fidelity).
        beta: cap on the expected share of dropped elements; None for no cap (R-Fidelity).
        removal: what an element is and what replaces it; pixels and zero unless given.
        sampling: of the masks.
        legacy_offset: count as the published script does.

    Returns:
        float32 (batch, 1 + sizes): the clean value first. Its mean over inputs is the curve.

    Raises:
        ValueError: a bad shape or range, NaN scores, a model in training mode.
    """
    removal, sampling = removal or RemovalSpec(), sampling or Sampling()
    check_arguments(model, inputs, labels, scores, sizes, alpha, beta, removal)
    if order not in ("morf", "lerf"):
        raise ValueError(f"order must be morf or lerf, got {order!r}")
    elements = removal.removable(inputs).sum(1)
    counts = count_removed(
        torch.tensor(list(sizes), dtype=torch.float64, device=elements.device),
        elements,
        legacy_offset=legacy_offset,
    )
    clean = clean_values(model, inputs, labels, sampling)
    curve = masked_values(
        model, inputs, labels, scores, counts, order, alpha, beta, removal, sampling
    )
    return torch.cat([clean[:, None], curve], 1)


def removal_rank(
    scores: Float[Tensor, "batch *grid"], removable: Tensor, order: Literal["morf", "lerf"]
) -> Int[Tensor, "batch elements"]:
    """Place of every element in the order of removal, 0 first; what must stay comes last."""
    flat = scores.reshape(len(scores), -1)
    key = -flat if order == "morf" else flat
    key = key.masked_fill(~removable, torch.inf)
    # Scores of -inf or inf must not pass elements that may not be removed: sort those last, stably.
    first = key.argsort(dim=1, stable=True)
    second = (~removable).gather(1, first).long().argsort(dim=1, stable=True)
    places = torch.arange(flat.shape[1], device=flat.device).expand_as(first)
    return torch.empty_like(first).scatter_(1, first.gather(1, second), places)


@torch.no_grad()
def clean_values(
    model: nn.Module, inputs: Inputs, labels: Tensor, sampling: Sampling
) -> Float[Tensor, " batch"]:
    """1_f(x) of every input."""
    size = sampling.rows(labels.device)
    values = []
    for i in range(0, len(labels), size):
        part = slice(i, i + size)
        values.append(_judge(model, take(inputs, part), labels[part], sampling.reduce))
    return torch.cat(values)


@torch.no_grad()
def masked_values(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    scores: Tensor,
    counts: Int[Tensor, "batch sizes"],
    order: Literal["morf", "lerf"],
    alpha: float | None,
    beta: float | None,
    removal: RemovalSpec,
    sampling: Sampling,
) -> Float[Tensor, "batch sizes"]:
    """E_mask[1_f(x ⊙ m)] with the first `counts` elements of the order dropped with q(s)."""
    removable = removal.removable(inputs)
    rank = removal_rank(scores, removable, order).int()
    q = drop_probability(counts, removable.sum(1, keepdim=True), alpha, beta)
    samples = 1 if bool((q >= 1).all()) else sampling.n_samples
    (images, elements), num_sizes = rank.shape, counts.shape[1]
    # One image at a time where its masks fill a batch, else several.
    group = max(1, sampling.rows(rank.device) // (num_sizes * samples))
    values = []
    for start in range(0, images, group):
        rows = torch.arange(start, min(start + group, images), device=rank.device)
        uniform = _uniform(rows, samples, elements, num_sizes, sampling)

        def total(
            g: int | slice, s: Tensor, n: slice, rows: Tensor = rows, uniform: Tensor = uniform
        ) -> Tensor:
            """Sum over samples n at sizes s of the images g of the group, (images, sizes)."""
            at = rows[g].view(-1)
            u = uniform[g].view(-1, *uniform.shape[1:])[:, :, n]
            drop = (u if u.shape[1] == 1 else u[:, s]) <= q[at][:, s, None, None]
            keep = ~((rank[at, None] < counts[at][:, s, None])[:, :, None] & drop)
            found = _in_batches(
                model, take(inputs, at), labels[at], keep.flatten(1, 2), removal, sampling
            )
            return found.view(len(at), len(s), -1).sum(2)

        values.append(_average(total, len(rows), num_sizes, samples, sampling, rank.device))
    return torch.cat(values)


def _average(
    total: Callable[[int | slice, Tensor, slice], Tensor],
    images: int,
    num_sizes: int,
    samples: int,
    sampling: Sampling,
    device: torch.device,
) -> Float[Tensor, "images sizes"]:
    """Mean over samples; where the first `early_stop` agree, over those."""
    first = min(sampling.early_stop or samples, samples)
    sizes = torch.arange(num_sizes, device=device)
    mean = total(slice(None), sizes, slice(0, first)) / first
    if first < samples:
        for image in range(images):
            share = mean[image]
            open_sizes = sizes[(share > 1e-6) & (share < 1 - 1e-6)]
            if len(open_sizes):
                rest = total(image, open_sizes, slice(first, samples))[0]
                mean[image, open_sizes] = (share[open_sizes] * first + rest) / samples
    return mean


def _in_batches(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    keep: Bool[Tensor, "images masks elements"],
    removal: RemovalSpec,
    sampling: Sampling,
) -> Float[Tensor, "images masks"]:
    """Judges every image under each of its masks."""
    images, masks, elements = keep.shape
    if images == 1:
        # A view: the masked copy is the only one that is made.
        repeated = _map(inputs, lambda x: x.expand(masks, *x.shape[1:]))
    else:
        repeated = _map(inputs, lambda x: x.repeat_interleave(masks, 0))
    flat, answers = keep.view(-1, elements), labels.repeat_interleave(masks)
    pieces = []
    size = sampling.rows(keep.device)
    for i in range(0, len(flat), size):
        part = slice(i, i + size)
        masked = removal.apply(take(repeated, part), flat[part])
        pieces.append(_judge(model, masked, answers[part], sampling.reduce))
    return torch.cat(pieces).view(images, masks)


def _map(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    if isinstance(inputs, Tensor):
        return change(inputs)
    return {name: change(tensor) for name, tensor in inputs.items()}


def _uniform(
    rows: Tensor, samples: int, elements: int, num_sizes: int, sampling: Sampling
) -> Float[Tensor, "batch sizes samples elements"]:
    if sampling.generator is None:
        return keyed_uniform(sampling.seed, rows, samples, elements)[:, None]
    device = sampling.generator.device
    drawn = [
        torch.rand(samples, elements, generator=sampling.generator, device=device)
        for _ in range(len(rows) * num_sizes)
    ]
    return torch.stack(drawn).view(len(rows), num_sizes, samples, elements).to(rows.device)


def predict(model: nn.Module, inputs: Inputs) -> Float[Tensor, "batch classes"]:
    """Logits of a classifier, plain or of transformers' kind."""
    output = model(inputs) if isinstance(inputs, Tensor) else model(**inputs)
    logits = output if isinstance(output, Tensor) else output.logits
    if logits.ndim != 2:
        raise ValueError(f"model must give (batch, classes) logits, got {tuple(logits.shape)}")
    return logits


def _judge(model: nn.Module, inputs: Inputs, labels: Tensor, reduce: str) -> Tensor:
    logits = predict(model, inputs)
    if reduce == "label":
        return (logits.argmax(1) == labels).float()
    return logits.float().softmax(1).gather(1, labels[:, None])[:, 0]


def check_arguments(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    scores: Tensor,
    sizes: Sequence[float],
    alpha: float | None,
    beta: float | None,
    removal: RemovalSpec,
) -> None:
    """Refuses what has no meaning; warns where a ranking is undefined."""
    expected = (num_examples(inputs), *removal.grid(inputs))
    if tuple(scores.shape) != expected:
        raise ValueError(
            f"scores must have the shape {expected} (one per {removal.unit}), got "
            f"{tuple(scores.shape)}: sum over channels, or resize the maps to the inputs first"
        )
    if labels.shape != expected[:1] or labels.dtype.is_floating_point:
        raise ValueError(f"labels must be ({expected[0]},) integers, got {tuple(labels.shape)}")
    if not expected[0]:
        raise ValueError("inputs must hold at least one example")
    if bool(scores.isnan().any()):
        raise ValueError("scores must not be NaN")
    for name, share in (("alpha", alpha), ("beta", beta)):
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"{name} must be in (0, 1], got {share}")
    if alpha is None and beta is not None:
        raise ValueError("beta caps alpha: give alpha too")
    check_sizes(sizes)
    if model.training:
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
    steps = list(sizes)
    if not steps or not all(0 < s <= 1 for s in steps) or steps != sorted(set(steps)):
        raise ValueError(f"sizes must be increasing shares in (0, 1], got {steps}")
