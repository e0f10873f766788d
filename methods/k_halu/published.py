"""The published per-item results of three API models, as counts.

The file of GPT-4-turbo equals that of GPT-3.5 in every cell. Published accuracy rises with the
number of right answers, as one pick does that counts when it hits any of them, and as matching
whole sets cannot: the figures are not comparable with set matches. The scorer was not released.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

_GOLD_BY_CELL = {"p60": 1, "p30": 2, "p10": 3}
_POLARITY_BY_CELL = {"h": "hallucinated", "t": "faithful"}


@cache
def published_counts() -> Mapping[str, Mapping[str, tuple[int, int]]]:
    """model → cell → (questions, hits); a cell is p60, p30 or p10 (one, two, three right answers),
    h or t (hallucinated or faithful statements asked for) and the domain's letter, "p60_hc"."""
    file = resources.files("ritornello.methods.k_halu") / "published.json"
    return {
        model: {cell: (n, hits) for cell, (n, hits) in cells.items()}
        for model, cells in json.loads(file.read_text(encoding="utf-8")).items()
    }


def published_items(
    model: str,
    *,
    n_gold: int | None = None,
    polarity: str | None = None,
    domain: str | None = None,
) -> NDArray[np.float64]:
    """The 0/1 results of the questions that fit, hits first within each cell.

    Raises:
        ValueError: an unknown model, or no such question.
    """
    counts = published_counts()
    if model not in counts:
        raise ValueError(f"model must be one of {sorted(counts)}, got {model!r}")
    parts = [
        np.repeat([1.0, 0.0], [hits, n - hits])
        for cell, (n, hits) in counts[model].items()
        if n_gold in (None, _GOLD_BY_CELL[cell[:3]])
        and polarity in (None, _POLARITY_BY_CELL[cell[4]])
        and domain in (None, cell[5])
    ]
    if not parts:
        raise ValueError(f"no question has n_gold={n_gold}, polarity={polarity}, domain={domain}")
    return np.concatenate(parts)


def identical_cells(one: str, other: str) -> float:
    """Share of the 42 cells in which two models have the same number of hits."""
    counts = published_counts()
    return float(np.mean([counts[one][cell] == counts[other][cell] for cell in counts[one]]))
