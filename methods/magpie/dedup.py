"""Near-duplicates by nearest neighbours of sentence embeddings.

Legend: N rows, D width. Distances are squared L2, as a flat FAISS index returns them.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

_BLOCK_ROWS = 1024
# products in fp32 are this inexact at most for unit vectors; closer pairs are computed anew
_SLACK = 1e-4


@dataclass(frozen=True)
class Duplicates:
    """What the search found for each of N rows.

    Attributes:
        min_neighbor_distance: squared distance to the nearest other row, float64 (inf if alone).
        repeat_count: other rows closer than the threshold, among the nearest `neighbors`.
        min_similar_index: -1 without repeats, else the smallest index among them and the row.
    """

    min_neighbor_distance: np.ndarray
    repeat_count: np.ndarray
    min_similar_index: np.ndarray

    @property
    def keep(self) -> np.ndarray:
        """True for rows without repeats and for the first row of each group."""
        own = self.min_similar_index == np.arange(len(self.min_similar_index))
        return (self.min_similar_index < 0) | own


class NearestNeighborDeduplicator:
    """Exact search by blocks of a matrix product, equal to a flat index.

    Args:
        threshold: squared distance below which two rows are repeats.
        metric: "sq_l2", the paper's; "l2" takes the threshold as a plain distance.
        neighbors: size of the neighbourhood in which repeats are counted, the row included.
    """

    def __init__(
        self,
        threshold: float = 0.05,
        metric: Literal["sq_l2", "l2"] = "sq_l2",
        neighbors: int = 500,
    ) -> None:
        if not threshold > 0:
            raise ValueError(f"threshold must be > 0, got {threshold}")
        if metric not in ("sq_l2", "l2"):
            raise ValueError(f"metric must be 'sq_l2' or 'l2', got {metric!r}")
        if neighbors < 2:
            raise ValueError(f"neighbors must be >= 2, got {neighbors}")
        self.threshold = threshold if metric == "sq_l2" else threshold**2
        self.metric = metric
        self.neighbors = neighbors

    @torch.inference_mode()
    def fit(self, embeddings: Float[Tensor, "N D"] | np.ndarray) -> Duplicates:
        """Finds nearest neighbours and repeats of every row.

        Raises:
            ValueError: embeddings are no finite matrix.
        """
        points = torch.as_tensor(embeddings).float()
        if points.dim() != 2 or not bool(torch.isfinite(points).all()):
            raise ValueError(
                f"embeddings must be a finite (rows, width) matrix, got {tuple(points.shape)}"
            )
        rows = len(points)
        nearest = np.full(rows, np.inf)
        count = np.zeros(rows, dtype=np.int64)
        smallest = np.full(rows, -1, dtype=np.int64)
        if rows > 1:
            norms = points.square().sum(1)
            slack = _SLACK * float(norms.max())
            for start in range(0, rows, _BLOCK_ROWS):
                block = slice(start, min(start + _BLOCK_ROWS, rows))
                rough = torch.addmm(norms[block, None] + norms, points[block], points.T, alpha=-2)
                rough.diagonal(start).fill_(torch.inf)
                nearest[block] = self._nearest(points, rough, start)
                self._repeats(points, rough, start, slack, count, smallest)
        distance = nearest if self.metric == "sq_l2" else np.sqrt(nearest)
        return Duplicates(distance, count, smallest)

    def _nearest(self, points: Tensor, rough: Tensor, start: int) -> np.ndarray:
        """Exact distances to the nearest of a few candidates per row."""
        candidates = rough.topk(min(4, rough.shape[1] - 1), largest=False).indices
        rows = points[start : start + len(rough), None]
        return (points[candidates] - rows).square().sum(-1).min(1).values.double().numpy()

    def _repeats(
        self,
        points: Tensor,
        rough: Tensor,
        start: int,
        slack: float,
        count: np.ndarray,
        smallest: np.ndarray,
    ) -> None:
        """Counts exact distances below the threshold, for the few pairs that come near it."""
        row, other = (rough < self.threshold + slack).nonzero(as_tuple=True)
        exact = (points[row + start] - points[other]).square().sum(-1)
        close = exact < self.threshold
        row, other, exact = row[close].numpy() + start, other[close].numpy(), exact[close].numpy()
        row, other = self._within_neighborhood(row, other, exact)
        np.add.at(count, row, 1)
        first = np.full(len(count), len(count), dtype=np.int64)
        np.minimum.at(first, row, other)
        found = np.unique(row)
        smallest[found] = np.minimum(first[found], found)

    def _within_neighborhood(
        self, row: np.ndarray, other: np.ndarray, distance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of each row's repeats the nearest `neighbors` - 1: the row itself takes one place."""
        order = np.lexsort((other, distance, row))
        row, other = row[order], other[order]
        _, starts, sizes = np.unique(row, return_index=True, return_counts=True)
        rank = np.arange(len(row)) - np.repeat(starts, sizes)
        inside = rank < self.neighbors - 1
        return row[inside], other[inside]
