"""Samples of prompt-completion pairs, and how completions become rows of codes (sec. 3, app. A).

Legend: N pairs, L positions, m prompts.
"""

import unicodedata
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

PAD = -1


class CompletionSample:
    """N prompt-completion pairs drawn from pi(x) P(y|x) (sec. 3.1).

    Args:
        prompts: index of each pair's prompt, (N,) integers in [0, num_prompts).
        completions: codes (N, L), right-padded with `pad`, or strings, which become code points.
        num_prompts: number of prompts; the largest index plus one by default.
        pad: the code of positions after the end.
        length: for strings, the number of positions; the longest string's by default. Samples that
            are compared need the same.

    Attributes:
        prompts: int64, (N,).
        completions: int64, (N, L), on the device of what was given.

    Raises:
        ValueError: nothing to compare, shapes that do not fit, codes that are no integers, or a
            prompt index outside the range.
    """

    prompts: Int[Tensor, " N"]
    completions: Int[Tensor, "N L"]

    def __init__(
        self,
        prompts: Any,
        completions: Any,
        num_prompts: int | None = None,
        pad: int = PAD,
        *,
        length: int | None = None,
    ) -> None:
        if isinstance(completions, list | tuple) and all(isinstance(c, str) for c in completions):
            completions = encode_unicode(completions, length, pad=pad)
        elif length is not None:
            raise ValueError(f"length={length} is for strings; codes: use truncate(length)")
        self.completions = _integers("completions", completions, ndim=2)
        self.prompts = _integers("prompts", prompts, ndim=1).to(self.completions.device)
        self.pad = pad
        if len(self.prompts) != len(self.completions):
            raise ValueError(
                "prompts and completions must have the same number of rows, got "
                f"{len(self.prompts)} and {len(self.completions)}"
            )
        if not self.completions.numel():
            shape = tuple(self.completions.shape)
            raise ValueError(f"completions must hold at least one row and position, got {shape}")
        low, high = int(self.prompts.min()), int(self.prompts.max())
        self.num_prompts = high + 1 if num_prompts is None else num_prompts
        if low < 0 or high >= self.num_prompts:
            raise ValueError(
                f"prompts must lie in [0, num_prompts={self.num_prompts}), got {low} to {high}"
            )

    def __len__(self) -> int:
        return len(self.prompts)

    def __repr__(self) -> str:
        return f"CompletionSample({len(self)} pairs, {self.num_prompts} prompts, L={self.length})"

    @property
    def length(self) -> int:
        """Positions of a completion, L."""
        return self.completions.shape[1]

    def counts(self) -> Int[Tensor, " m"]:
        """Completions of each prompt."""
        return torch.bincount(self.prompts, minlength=self.num_prompts)

    def take(self, rows: Any) -> "CompletionSample":
        """The pairs at the given row indices."""
        rows = torch.as_tensor(rows, device=self.prompts.device)
        return CompletionSample(
            self.prompts[rows], self.completions[rows], self.num_prompts, self.pad
        )

    def truncate(self, length: int) -> "CompletionSample":
        """The first `length` positions of every completion."""
        if not 1 <= length <= self.length:
            raise ValueError(f"length must be in [1, {self.length}], got {length}")
        return CompletionSample(
            self.prompts, self.completions[:, :length], self.num_prompts, self.pad
        )

    def to(self, device: torch.device | str) -> "CompletionSample":
        """The same sample on another device."""
        return CompletionSample(
            self.prompts.to(device), self.completions.to(device), self.num_prompts, self.pad
        )


def check_comparable(a: CompletionSample, b: CompletionSample) -> None:
    """Raises ValueError unless both samples have the same L, prompts and padding."""
    for name in ("length", "num_prompts", "pad"):
        ours, theirs = getattr(a, name), getattr(b, name)
        if ours != theirs:
            raise ValueError(
                f"both samples must have the same {name}, got {ours} and {theirs}"
                + ("; encode both with one length=" if name == "length" else "")
            )
    for sample in (a, b):
        if len(sample) < 2:
            raise ValueError(f"a sample needs at least 2 pairs, got {len(sample)}")


def encode_unicode(
    strings: Sequence[str],
    length: int | None = None,
    truncate: bool = True,
    *,
    pad: int = PAD,
    nfc: bool = False,
) -> Int[np.ndarray, "N L"]:
    """Strings to rows of Unicode code points, right-padded (app. A; the space of API audits).

    Args:
        strings: at least one; "" gives a row of padding.
        length: positions; the longest string's by default (at least 1).
        truncate: cut longer strings; otherwise they are an error.
        pad: code of the positions after the end.
        nfc: compose characters first, so that both spellings of an accent are one code.

    Raises:
        ValueError: no strings, or one that is too long without `truncate`.
    """
    if isinstance(strings, str) or not len(strings):
        raise ValueError(f"strings must be a sequence of at least one string, got {strings!r}")
    if nfc:
        strings = [unicodedata.normalize("NFC", string) for string in strings]
    sizes = np.array([len(string) for string in strings])
    width = max(1, int(sizes.max())) if length is None else length
    if width < 1:
        raise ValueError(f"length must be >= 1, got {length}")
    if sizes.max() > width and not truncate:
        raise ValueError(f"a string has {sizes.max()} characters, more than length={width}")
    codes = np.full((len(strings), width), pad, dtype=np.int32)
    cut = "".join(string[:width] for string in strings)
    points = np.frombuffer(cut.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    codes[np.arange(width) < sizes[:, None]] = points
    return codes


def encode_tokens(
    sequences: Sequence[Sequence[int]], length: int, *, pad: int = PAD
) -> Int[np.ndarray, "N L"]:
    """Token id sequences of any lengths to rows of `length` codes, cut and right-padded."""
    if not len(sequences) or length < 1:
        raise ValueError(
            f"sequences must hold at least one, length be >= 1; got {len(sequences)}, {length}"
        )
    codes = np.full((len(sequences), length), pad, dtype=np.int64)
    for row, ids in zip(codes, sequences, strict=True):
        cut = list(ids[:length])
        row[: len(cut)] = cut
    return codes


def pad_after_end(
    codes: Int[Tensor, "N L"],
    end_ids: Collection[int],
    *,
    pad: int = PAD,
    official: bool = False,
) -> Int[Tensor, "N L"]:
    """Everything after the first end token becomes padding; the end token itself is kept.

    Args:
        codes: token ids as a generation returns them.
        end_ids: ids that end a completion.
        pad: the code to write.
        official: as the published code, leave a row alone whose very first token is an end.
    """
    ends = torch.isin(codes, torch.tensor(sorted(end_ids), device=codes.device))
    after = (ends.cumsum(1) - ends.long()) > 0
    if official:
        after &= ~ends[:, :1]
    return codes.masked_fill(after, pad)


def _integers(name: str, values: Any, *, ndim: int) -> Tensor:
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        # torch takes neither negative strides nor another byte order
        values = values.astype(np.int64, order="C")
    tensor = torch.as_tensor(values)
    if tensor.is_floating_point() or tensor.is_complex():
        raise ValueError(f"{name} must be integers, got {tensor.dtype}")
    if tensor.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, got shape {tuple(tensor.shape)}")
    return tensor.detach().long()
