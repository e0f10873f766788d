"""The contrastive losses: NT-Xent, and CoMM's sum over projections (eqs. 5 to 7)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ritornello.methods.comm.gather import gather_batch


@dataclass
class LossOutput:
    """A loss with its parts.

    Attributes:
        loss: what is minimised.
        per_term: the terms, with gradients; CoMM's last one is that of the multimodal embeddings.
        accuracy: per term, the share of samples in percent whose nearest partner is its own.
        names: of the terms, where they have some.
    """

    loss: Float[Tensor, ""]
    per_term: Float[Tensor, " terms"]
    accuracy: Float[Tensor, " terms"]
    names: tuple[str, ...] = field(default=())


def check_temperature(temperature: float) -> None:
    """Raises ValueError unless the temperature is positive."""
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")


def check_pair(a: Tensor, b: Tensor, names: str) -> None:
    """Raises ValueError unless both are embeddings of the same samples."""
    if a.ndim != 2 or a.shape != b.shape or not len(a):
        raise ValueError(
            f"{names} must be (samples, dim) of one shape with at least one sample, "
            f"got {tuple(a.shape)} and {tuple(b.shape)}"
        )


def normalized(z: Tensor) -> Float[Tensor, "*batch dim"]:
    """Unit length, in float32 or more: 1 / τ makes half precision too coarse for the logits."""
    return F.normalize(z.to(torch.promote_types(z.dtype, torch.float32)), dim=-1)


def _blocks(n: int, entries: int = 2**21) -> list[slice]:
    """Rows of an n × n matrix by blocks that fit a cache."""
    rows = max(1, entries // n)
    return [slice(start, start + rows) for start in range(0, n, rows)]


def _terms(
    z: Float[Tensor, "2 k n dim"], temperature: float
) -> tuple[Float[Tensor, " k"], Float[Tensor, "2 k n"]]:
    """The terms ½ [NCE(z'_k, z''_all) + NCE(z''_k, z'_all)], and each sample's nearest prototype.

    The last of the k is `all`, the prototype that each z meets in the other view. In
    NCE(a, b) = mean_i ½ [log Σ_row / e^{a_i·b_i/τ} + log Σ_column / e^{a_i·b_i/τ}] a row's sum is
    over all b and all other a, a column's over all a and all other b.
    """
    lowest = 0.9 * math.log(torch.finfo(z.dtype).tiny)
    if -2 / temperature > lowest:
        return _Terms.apply(z, temperature)
    prototypes = z[:, -1:].flip(0)
    own = z @ z.transpose(-1, -2) / temperature
    own = own.masked_fill(torch.eye(z.shape[2], dtype=torch.bool, device=z.device), -math.inf)
    own, cross = own.logsumexp(-1), z @ prototypes.transpose(-1, -2) / temperature
    rows = torch.logaddexp(cross.logsumexp(-1), own)
    columns = torch.logaddexp(cross.logsumexp(-2), own[:, -1:].flip(0))
    terms = ((rows + columns) / 2 - cross.diagonal(dim1=-2, dim2=-1)).mean(dim=(0, 2))
    return terms, cross.detach().argmax(-1)


class _Terms(torch.autograd.Function):
    """`_terms` where e^{(z_i·z_j - 1) / τ} cannot vanish: one exponential serves rows and columns.

    Where the matrices of all k do not fit a cache, none of them is kept: the backward pass computes
    them again, by blocks of rows.
    """

    @staticmethod
    def _exponentials(
        z: Tensor, rows: slice, temperature: float
    ) -> tuple[Float[Tensor, "2 k rows n"], Float[Tensor, "2 k rows n"], Tensor]:
        """e^{(z_i·y_j - 1) / τ} with y the samples of the same kind, zero for j = i, and with the
        other view's prototypes; and the nearest of the latter."""
        own = (z[:, :, rows] @ z.transpose(-1, -2)).sub_(1).div_(temperature).exp_()
        own.diagonal(rows.start, -2, -1).zero_()
        cross = z[:, :, rows] @ z[:, -1:].flip(0).transpose(-1, -2)
        nearest = cross.argmax(-1)
        return own, cross.sub_(1).div_(temperature).exp_(), nearest

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, z: Float[Tensor, "2 k n dim"], temperature: float
    ) -> tuple[Tensor, Tensor]:
        blocks = _blocks(z.shape[2])
        own_sums, rows, positives, nearest = [], [], [], []
        columns: Any = 0
        for block in blocks:
            own, cross, found = _Terms._exponentials(z, block, temperature)
            own_sums.append(own.sum(-1))
            rows.append(cross.sum(-1) + own_sums[-1])
            positives.append(cross.diagonal(block.start, -2, -1))
            columns = columns + cross.sum(-2)
            nearest.append(found)
        row, positive = torch.cat(rows, -1), torch.cat(positives, -1)
        column = columns + torch.cat(own_sums, -1)[:, -1:].flip(0)
        ctx.temperature = temperature
        ctx.save_for_backward(z, row, column, *((own, cross) if len(blocks) == 1 else ()))
        closest = torch.cat(nearest, -1)
        ctx.mark_non_differentiable(closest)
        terms = ((row / positive).log() + (column / positive).log()) / 2
        return terms.mean(dim=(0, 2)), closest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        z, row, column, *kept = ctx.saved_tensors
        share = grad[:, None] / (4 * z.shape[2] * ctx.temperature)
        of_row, of_column = share / row, share / column
        of_own = of_row.clone()
        of_own[:, -1] += of_column.sum(dim=1).flip(0)  # a prototype's own sum is in every column
        prototypes, parts = z[:, -1:].flip(0), []
        to_prototypes: Any = 0
        for block in _blocks(z.shape[2]):
            own, cross = kept or _Terms._exponentials(z, block, ctx.temperature)[:2]
            cross = cross * (of_row[:, :, block, None] + of_column[:, :, None])
            cross.diagonal(block.start, -2, -1).sub_(2 * share)
            own = own * (of_own[:, :, block, None] + of_own[:, :, None])
            parts.append(own @ z + cross @ prototypes)
            to_prototypes = to_prototypes + (cross.transpose(-1, -2) @ z[:, :, block]).sum(dim=1)
        whole = torch.cat(parts, dim=2)
        whole[:, -1] += to_prototypes.flip(0)
        return whole, None


def nt_xent(
    z1: Float[Tensor, "n dim"],
    z2: Float[Tensor, "n dim"],
    temperature: float = 0.1,
    gather: bool = False,
) -> Float[Tensor, ""]:
    """InfoNCE between paired embeddings: every other sample of either side is a negative (eq. 5).

    For each of the 2N rows the positive is its partner, the negatives are all others.

    Args:
        z1, z2: embeddings of the same samples; normalised here.
        temperature: τ.
        gather: takes the samples of all processes, with gradients.

    Raises:
        ValueError: shapes that differ, τ ≤ 0.
    """
    check_pair(z1, z2, "z1 and z2")
    check_temperature(temperature)
    a, b = normalized(z1), normalized(z2)
    if gather:
        a, b = gather_batch([a, b])
    with torch.autocast(a.device.type, enabled=False):
        return _terms(torch.stack([a, b]).unsqueeze(1), temperature)[0][0]


class CoMMLoss(nn.Module):
    """L = mean_k w_k ½ [NCE(z'_k, z''_all) + NCE(z''_k, z'_all)] over k = 1 … n and all (eq. 7).

    The multimodal embedding is the last of each list, and its own term the last of the terms.

    Args:
        temperature: τ.
        weights: w_k, n + 1 of them; all 1 when None. The mean is over terms, weighted or not.
        gather: takes the samples of all processes, with gradients.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        weights: Sequence[float] | None = None,
        gather: bool = True,
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        self.temperature, self.gather = temperature, gather
        self.weights = None if weights is None else tuple(float(w) for w in weights)

    def forward(
        self,
        views1: Sequence[Float[Tensor, "n dim"]],
        views2: Sequence[Float[Tensor, "n dim"]],
    ) -> LossOutput:
        """The loss of two augmentations of one batch.

        Args:
            views1, views2: n + 1 projected embeddings each, the multimodal one last.

        Raises:
            ValueError: lists or batches that do not fit each other, or the weights.
        """
        if len(views1) != len(views2) or len(views1) < 2:
            raise ValueError(
                "views1 and views2 must hold the same number of embeddings, at least 2, "
                f"got {len(views1)} and {len(views2)}"
            )
        for a, b in zip(views1, views2, strict=True):
            check_pair(a, b, "views1 and views2")
            check_pair(a, views1[0], "all embeddings")
        if self.weights is not None and len(self.weights) != len(views1):
            raise ValueError(f"weights must be {len(views1)} numbers, got {len(self.weights)}")
        z = normalized(torch.stack([*views1, *views2]))
        if self.gather:
            z = gather_batch([z.transpose(0, 1)])[0].transpose(0, 1)
        with torch.autocast(z.device.type, enabled=False):
            terms, nearest = _terms(z.unflatten(0, (2, -1)), self.temperature)
        scale = terms.new_tensor(self.weights) if self.weights is not None else 1.0
        own = nearest == torch.arange(nearest.shape[2], device=nearest.device)
        return LossOutput((terms * scale).mean(), terms, 100 * own.float().mean(dim=(0, 2)))
