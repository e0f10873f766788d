"""What an element of an input is, and what stands in its place once it is removed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ritornello.methods.f_fidelity.imputation import impute_linear

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]
Unit: TypeAlias = Literal["pixel", "element", "timestep", "token"]
Baseline: TypeAlias = Literal["zero", "mean", "linear"] | Tensor | int


def num_examples(inputs: Inputs) -> int:
    """The size of the first axis."""
    return len(inputs if isinstance(inputs, Tensor) else inputs["input_ids"])


def take(inputs: Inputs, rows: Tensor | slice) -> Inputs:
    """The chosen rows of a tensor, or of every tensor of a mapping."""
    if isinstance(inputs, Mapping):
        return {name: take(tensor, rows) for name, tensor in inputs.items()}  # type: ignore
    # Several times as fast as an index on the CPU.
    return inputs[rows] if isinstance(rows, slice) else inputs.index_select(0, rows)


@dataclass(frozen=True)
class RemovalSpec:
    """How elements are removed.

    The baseline is in the units of what the model is given, after normalisation: 0 is then the mean
    colour of the data set, not black.

    Attributes:
        baseline: `zero`; `mean`, per channel over the places of the same input; `linear`, noisy
            linear interpolation from the places that are kept (ROAD; pixels only); a tensor that
            broadcasts to one input; for tokens the id of the mask or pad token.
        unit: `pixel`: all channels of a place of (B, C, H, W) together; `element`: every cell of
            (B, ...), for instance time × sensor; `timestep`: a row of (B, time, sensors);
            `token`: a word piece of `input_ids` (B, L).
        channels_last: images are (B, H, W, C).
        special_ids: tokens that are never removed (CLS, SEP, PAD); masked-out positions never are.
        drop: tokens leave the attention mask instead of being replaced.
    """

    baseline: Baseline = "zero"
    unit: Unit = "pixel"
    channels_last: bool = False
    special_ids: tuple[int, ...] = ()
    drop: bool = False

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ValueError(f"unit must be one of {get_args(Unit)}, got {self.unit!r}")
        if isinstance(self.baseline, str) and self.baseline not in ("zero", "mean", "linear"):
            raise ValueError(f"baseline must be zero, mean or linear, got {self.baseline!r}")
        named = isinstance(self.baseline, str)
        if self.unit == "token" and not self.drop and (named or isinstance(self.baseline, Tensor)):
            raise ValueError(f"baseline must be a token id for unit='token', got {self.baseline!r}")
        if self.baseline == "linear" and self.unit != "pixel":
            raise ValueError(f"baseline='linear' needs unit='pixel', got unit={self.unit!r}")
        if self.drop and self.unit != "token":
            raise ValueError(f"drop needs unit='token', got unit={self.unit!r}")

    def grid(self, inputs: Inputs) -> tuple[int, ...]:
        """The shape of the scores of one input.

        Raises:
            ValueError: inputs do not fit the unit.
        """
        if self.unit == "token":
            if isinstance(inputs, Tensor) or "input_ids" not in inputs:
                raise ValueError("inputs must be a mapping with input_ids for unit='token'")
            if self.drop and "attention_mask" not in inputs:
                raise ValueError("inputs must hold attention_mask where drop=True")
            return tuple(inputs["input_ids"].shape[1:])
        if not isinstance(inputs, Tensor):
            raise ValueError(f"inputs must be a tensor for unit={self.unit!r}, got a mapping")
        least = {"pixel": 4, "timestep": 3, "element": 2}[self.unit]
        exact = self.unit != "element"
        if inputs.ndim < least or (exact and inputs.ndim != least):
            raise ValueError(
                f"inputs must have {least} axes for unit={self.unit!r}, got {tuple(inputs.shape)}"
            )
        if self.unit == "pixel":
            return tuple(inputs.shape[1:3] if self.channels_last else inputs.shape[2:])
        return tuple(inputs.shape[1:2] if self.unit == "timestep" else inputs.shape[1:])

    def size(self, inputs: Inputs) -> int:
        """Elements of one input, d."""
        return math.prod(self.grid(inputs))

    def removable(self, inputs: Inputs) -> Bool[Tensor, "batch elements"]:
        """Which elements may be removed: all, but for special and padded tokens."""
        if isinstance(inputs, Tensor):
            shape = (num_examples(inputs), self.size(inputs))
            return torch.ones(shape, dtype=torch.bool, device=inputs.device)
        ids = inputs["input_ids"]
        special = torch.tensor(self.special_ids, dtype=ids.dtype, device=ids.device)
        allowed = ~torch.isin(ids, special)
        return allowed & inputs["attention_mask"].bool() if "attention_mask" in inputs else allowed

    def apply(self, inputs: Inputs, keep: Bool[Tensor, "batch elements"]) -> Inputs:
        """Inputs in which the elements that are not kept have been removed."""
        if not isinstance(inputs, Tensor):
            return self._apply_to_tokens(inputs, keep)
        mask = self._broadcast(inputs, keep)
        if isinstance(self.baseline, Tensor):
            return torch.where(mask, inputs, self.baseline.to(inputs))
        if self.baseline == "linear":
            if self.channels_last:
                filled = impute_linear(inputs.movedim(-1, 1), mask.movedim(-1, 1)[:, 0])
                return filled.movedim(1, -1)
            return impute_linear(inputs, mask[:, 0])
        if self.baseline == "mean":
            return torch.where(mask, inputs, inputs.mean(self._places(inputs), keepdim=True))
        return torch.where(mask, inputs, 0 if isinstance(self.baseline, str) else self.baseline)

    def _apply_to_tokens(self, inputs: Mapping[str, Tensor], keep: Tensor) -> Inputs:
        if self.drop:
            mask = inputs["attention_mask"]
            return {**inputs, "attention_mask": mask * keep.to(mask.dtype)}
        ids = inputs["input_ids"]
        assert isinstance(self.baseline, int)
        return {**inputs, "input_ids": torch.where(keep, ids, self.baseline)}

    def _broadcast(self, inputs: Tensor, keep: Tensor) -> Tensor:
        mask = keep.view(len(inputs), *self.grid(inputs))
        if self.unit == "pixel":
            return mask.unsqueeze(-1 if self.channels_last else 1)
        return mask.unsqueeze(-1) if self.unit == "timestep" else mask

    def _places(self, inputs: Tensor) -> tuple[int, ...]:
        if self.unit == "pixel":
            return (1, 2) if self.channels_last else (2, 3)
        return (1,) if self.unit == "timestep" or inputs.ndim == 3 else tuple(range(1, inputs.ndim))


def count_removed(
    sizes: Tensor, elements: Int[Tensor, " batch"], *, legacy_offset: bool = False
) -> Int[Tensor, "batch sizes"]:
    """k = ⌊s·d⌋ for every input and size.

    Args:
        sizes: s, shares of the elements.
        elements: d of every input.
        legacy_offset: int(d/100·(i+1)) for i = 100·s, as the published script counts, at most d.
    """
    d = elements[:, None].double()
    s = sizes.to(d)
    # 0.29·100 is 28.999… in binary: a hair is added before the floor.
    k = d / 100 * ((100 * s).round() + 1) if legacy_offset else s * d + 1e-9
    return k.floor().long().clamp(max=elements[:, None])


def drop_probability(
    counts: Int[Tensor, "..."],
    elements: Int[Tensor, "..."],
    alpha: float | None,
    beta: float | None,
) -> Tensor:
    """q(s): with what probability each of k elements is dropped (F-Fidelity's definition).

    α while k·α ≤ β·d, else β·d/k, so that at most β·d elements go on average. Without β there is
    no cap (R-Fidelity), without α every element goes (plain fidelity).
    """
    if alpha is None:
        return torch.ones(counts.shape, device=counts.device)
    q = torch.full(counts.shape, float(alpha), dtype=torch.float64, device=counts.device)
    if beta is not None:
        cap = beta * elements.double()
        q = torch.where(counts * alpha <= cap, q, cap / counts.clamp(min=1))
    return q.float()
