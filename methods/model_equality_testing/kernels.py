"""Kernels between completions of one prompt (sec. 3.2, app. B.1).

All of them take codes (S, b, L) and give float64 matrices (S, b, b): S independent draws of b
completions of L positions each.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

# Kernel entries held at once while positions are compared.
_CHUNK = 20_000_000


def hamming_kernel(
    codes: Int[Tensor, "S b L"], *, pad: int, ignore_padding: bool = False
) -> Float[Tensor, "S b b"]:
    """Number of positions at which two completions agree: sum_l 1[y_l = y'_l].

    Positions that are padding in both count as equal, as in the paper, unless `ignore_padding`.
    """
    draws, rows, length = codes.shape
    real = codes != pad
    # columns in which nobody has a symbol any more are a constant
    used = int(real.any(0).any(0).nonzero().max()) + 1 if bool(real.any()) else 0
    cut = codes[..., :used]
    if used and int(cut.max()) >= 2**24:
        # float32 counts exactly up to there; only equality of codes matters
        cut = torch.unique(cut, return_inverse=True)[1]
    agree = torch.empty(draws, rows, rows, dtype=torch.float64, device=codes.device)
    step = max(1, _CHUNK // (rows * rows))
    for start in range(0, draws, step):
        part = cut[start : start + step].float()
        # cdist with p = 0 counts the positions that differ
        agree[start : start + step] = used - torch.cdist(part, part, p=0).double()
        if ignore_padding:
            blank = (~real[start : start + step, :, :used]).double()
            agree[start : start + step] -= blank @ blank.mT
    return agree if ignore_padding else agree + (length - used)


def spectrum_kernel(
    codes: Int[Tensor, "S b L"], *, k: int, pad: int, cumulative: bool = True
) -> Float[Tensor, "S b b"]:
    """Dot product of n-gram counts, n = 1..k (`cumulative`) or n = k; k = L is all substrings.

    n-grams are over codes, padding included. Exact: the sums are integers.
    """
    draws, rows, length = codes.shape
    values = codes.cpu().numpy()
    first, last = 1 if cumulative else k, min(k, length)
    # a run of p pads holds p - n + 1 n-grams of nothing but padding
    tails = _trailing_pads(values, pad)
    sizes = np.arange(first, last + 1)
    blank = np.maximum(0, tails[..., None] - sizes + 1).astype(np.float64)
    total = blank @ blank.swapaxes(1, 2)
    counted = _NGrams(values.reshape(draws * rows, length), rows, length - tails.reshape(-1))
    for n in range(1, last + 1):
        counted.lengthen()
        if n >= first:
            counted.add_products(total)
        counted.settle_lone(total, first, last)
        if not counted.active:
            break
    return torch.from_numpy(total).to(codes.device)


def one_hot_kernel(codes: Int[Tensor, "S b L"]) -> Float[Tensor, "S b b"]:
    """1 where two completions are the same, else 0."""
    ids = completion_ids(codes)
    return (ids[:, :, None] == ids[:, None, :]).double()


def completion_ids(codes: Int[Tensor, "S b L"]) -> Int[Tensor, "S b"]:
    """A number for each distinct completion: equal numbers mean equal rows."""
    rows = np.ascontiguousarray(codes.cpu().numpy().reshape(-1, codes.shape[-1]))
    whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
    ids = np.unique(whole, return_inverse=True)[1]
    return torch.from_numpy(ids).view(codes.shape[:2]).to(codes.device)


def normalise_kernel(kernel: Float[Tensor, "S b b"]) -> Float[Tensor, "S b b"]:
    """Unit self-similarity, k / sqrt(k(y,y) k(y',y')) with 1 for a zero diagonal; then diagonal 0.

    The diagonal goes last: the estimate leaves out pairs of a completion with itself.
    """
    diagonal = kernel.diagonal(dim1=-2, dim2=-1)
    root = torch.where(diagonal == 0, 1.0, diagonal).sqrt()
    scaled = kernel / (root[:, :, None] * root[:, None, :])
    scaled.diagonal(dim1=-2, dim2=-1).zero_()
    return scaled


def _trailing_pads(codes: np.ndarray, pad: int) -> np.ndarray:
    """Length of the padding at the end of each row; 0 everywhere if some lies elsewhere too."""
    blank = codes == pad
    tails = np.flip(blank, -1).cumprod(-1).sum(-1)
    return tails if (tails == blank.sum(-1)).all() else np.zeros_like(tails)


class _NGrams:
    """All n-grams of many rows, for n = 1, 2, ...; those seen once are not followed further.

    An n-gram that occurs nowhere else in its draw has only longer n-grams that occur nowhere else
    either, and each of them adds 1 to its own row's self-similarity: that is counted at once.

    Args:
        codes: (draws x rows, L).
        rows: rows of a draw; n-grams are shared within a draw only.
        starts: how many positions of each row are followed as beginnings, (draws x rows,).
    """

    def __init__(self, codes: np.ndarray, rows: int, starts: np.ndarray) -> None:
        symbols, ids = np.unique(codes, return_inverse=True)
        self._symbols = len(symbols)
        self._codes: np.ndarray = ids.reshape(codes.shape)
        self._rows = rows
        self._n = 0
        length = codes.shape[1]
        self._row, self._start = np.nonzero(np.arange(length) < starts[:, None])
        self._id = self._row // rows
        self._lone = np.zeros(0, dtype=bool)

    @property
    def active(self) -> bool:
        return len(self._row) > 0

    def lengthen(self) -> None:
        """From n-grams to (n+1)-grams: an identity is the pair (n-gram, next code)."""
        fits = self._start + self._n < self._codes.shape[1]
        self._keep(fits)
        symbol = self._codes[self._row, self._start + self._n]
        _, self._id, counts = np.unique(
            self._id * self._symbols + symbol, return_inverse=True, return_counts=True
        )
        self._lone = counts[self._id] == 1
        self._n += 1

    def add_products(self, total: np.ndarray) -> None:
        """Adds the dot products of the counts of n-grams that occur more than once."""
        from scipy.sparse import coo_array

        shared = ~self._lone
        if not shared.any():
            return
        shape = (total.shape[0] * self._rows, int(self._id.max()) + 1)
        ones = np.ones(int(shared.sum()))
        counts = coo_array((ones, (self._row[shared], self._id[shared])), shape).tocsr()
        products = (counts @ counts.T).tocoo()
        row, column = products.coords
        total[row // self._rows, row % self._rows, column % self._rows] += products.data

    def settle_lone(self, total: np.ndarray, first: int, last: int) -> None:
        """Counts for good, and drops, n-grams seen once: each adds 1 to its own row, and so do
        its extensions, for the lengths first..last that are asked for.
        """
        row, start = self._row[self._lone], self._start[self._lone]
        longest = np.minimum(last, self._codes.shape[1] - start)
        lengths = np.maximum(0, longest - max(first, self._n) + 1)
        own = np.bincount(row, lengths, minlength=total.shape[0] * self._rows)
        total.reshape(-1, self._rows**2)[:, :: self._rows + 1] += own.reshape(-1, self._rows)
        self._keep(~self._lone)

    def _keep(self, which: np.ndarray) -> None:
        self._row, self._start, self._id = self._row[which], self._start[which], self._id[which]
