"""MultiBench's affect tasks: sentiment, humour and sarcasm from picture and text features."""

import io
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ritornello.common.cache import sha256_file
from ritornello.common.errors import UserError
from ritornello.common.runs import Cell, CellContext, Measurement
from ritornello.experiments.comm.arms import Architecture, Arm
from ritornello.experiments.comm.training import TensorTask
from ritornello.methods.comm.adapters import position_table_1d
from ritornello.methods.comm.augmentation import SequenceAugmentation

FILES = {"mosi": "mosi_raw.pkl", "humor": "humor.pkl", "sarcasm": "sarcasm.pkl"}
_ARRAYS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("_codecs", "encode"),  # bytes, as Python 3 writes them for Python 2
}


class _ArraysOnly(pickle.Unpickler):
    """Numpy arrays in plain containers; a pickle that names anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAYS:
            raise UserError(f"the file wants to load {module}.{name}: only numpy arrays are read")
        return super().find_class(module, name)


def load_arrays(file: Path) -> dict[str, dict[str, np.ndarray]]:
    """The splits of a MultiBench file: `vision`, `audio`, `text` (n, steps, features), `labels`."""
    if not file.is_file():
        raise UserError(
            f"there is no {file}: settings.multibench must be the folder of MultiBench's pickles"
        )
    return _ArraysOnly(io.BytesIO(file.read_bytes()), encoding="latin1").load()


def flagged_sequences(values: np.ndarray, text: np.ndarray, steps: int = 50) -> Tensor:
    """Sequences from the text's first word on, padded; the last channel flags real steps."""
    out = torch.zeros(len(values), steps, values.shape[2] + 1)
    for row, (sequence, words) in enumerate(zip(values, text, strict=True)):
        spoken = np.flatnonzero(np.abs(words).sum(axis=1))
        start = int(spoken[0]) if len(spoken) else 0
        kept = np.nan_to_num(sequence[start:][:steps].astype(np.float32), neginf=0.0, posinf=0.0)
        out[row, : len(kept), :-1] = torch.from_numpy(kept)
        out[row, : max(len(kept), 1), -1] = 1.0
    return out


class SequenceEncoder(nn.Module):
    """Features to tokens of width 40, sines for positions, five pre-norm layers of five heads."""

    def __init__(self, features: int, width: int = 40, steps: int = 50) -> None:
        super().__init__()
        self.project = nn.Linear(features, width, bias=False)
        self.register_buffer("positions", position_table_1d(steps, width))
        layer = nn.TransformerEncoderLayer(width, nhead=5, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=5, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Tokens, and True where there is none."""
        padding = x[..., -1] < 0.5
        tokens = self.project(x[..., :-1]) + self.positions[:, : x.shape[1]]  # type: ignore[index]
        encoded = self.layers(tokens, src_key_padding_mask=padding)
        return {"token_embeddings": encoded, "attention_mask": padding}


class Pooled(nn.Module):
    """The mean of an encoder's real tokens, for methods without fusion."""

    def __init__(self, sequence: SequenceEncoder) -> None:
        super().__init__()
        self.sequence = sequence

    def forward(self, x: Tensor) -> Tensor:
        """Mean over the tokens that are there."""
        encoded = self.sequence(x)
        there = (~encoded["attention_mask"]).unsqueeze(-1)
        return (encoded["token_embeddings"] * there).sum(dim=1) / there.sum(dim=1)


@dataclass(frozen=True)
class FlaggedAugmentation:
    """Augments the features and leaves the flags of real steps alone."""

    one: SequenceAugmentation = field(default_factory=SequenceAugmentation)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([self.one(x[..., :-1]), x[..., -1:]], dim=-1) for x in inputs]


@cache
def _splits(file: Path, modalities: tuple[str, ...]) -> dict[str, tuple[list[Tensor], Tensor]]:
    found = {}
    for split, arrays in load_arrays(file).items():
        inputs = [flagged_sequences(arrays[m], arrays["text"]) for m in modalities]
        labels = np.asarray(arrays["labels"]).reshape(len(inputs[0]), -1)[:, 0]
        found[split] = inputs, torch.from_numpy((labels > 0).astype(np.int64))
    return found


@dataclass
class Affect(TensorTask):
    """Linear probes on MOSI, UR-FUNNY and MUsTARD (the grid coordinate `dataset`).

    Args:
        folder: of MultiBench's pickled features.
        modalities: two or three of vision, audio and text.
        datasets: those whose files must be there.
    """

    folder: str | None = None
    modalities: Sequence[str] = ("vision", "text")
    datasets: Sequence[str] = tuple(FILES)

    def prepare(self) -> None:
        """Looks for the files."""
        super().prepare()
        if self.folder is None:
            raise UserError(
                "settings.multibench must name the folder of MultiBench's features "
                f"({', '.join(FILES.values())})"
            )
        for dataset in self.datasets:
            if not self._file(dataset).is_file():
                raise UserError(f"there is no {self._file(dataset)}: see settings.multibench")

    def _file(self, dataset: str) -> Path:
        if dataset not in FILES:
            raise UserError(f"dataset must be one of {tuple(FILES)}, got {dataset!r}")
        return Path(self.folder or "") / FILES[dataset]

    def measure(self, arm: Arm, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        """Accuracy of the two classes, one sample a test clip."""
        file = self._file(str(cell.coordinates["dataset"]))
        context.uses(file.name, sha256_file(file))
        splits = _splits(file, tuple(self.modalities))
        widths = [x.shape[-1] - 1 for x in splits["train"][0]]

        def architecture() -> Architecture:
            sequences: list[nn.Module] = [SequenceEncoder(width) for width in widths]
            pooled: list[nn.Module] = [Pooled(s) for s in sequences]  # type: ignore[arg-type]
            n = len(widths)
            return Architecture(pooled, [None] * n, [40] * n, 40, whole=sequences)

        augment = FlaggedAugmentation()
        model = self.train_on(arm, architecture, splits["train"], augment, cell, context)
        yield self.accuracy(model, splits["train"], splits["test"])
