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


def _own_scores(z: Tensor, rows: slice, temperature: float) -> Float[Tensor, "*k rows n"]:
    """z_i·z_j / τ for some rows i, −inf for j = i."""
    scores = (z[..., rows, :] @ z.transpose(-1, -2)).div_(temperature)  # symmetric to the last bit
    scores.diagonal(rows.start, -2, -1).fill_(-math.inf)
    return scores


class _OwnLogSums(torch.autograd.Function):
    """log Σ_{j≠i} exp(z_i·z_j / τ); −inf for a single sample.

    No n × n matrix is kept: the backward pass computes it again, by blocks. Scores are symmetric,
    so that both halves of the gradient take one product.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, z: Float[Tensor, "*k n dim"], temperature: float
    ) -> Float[Tensor, "*k n"]:
        blocks = _blocks(z.shape[-2])
        sums = torch.cat([_own_scores(z, b, temperature).logsumexp(-1) for b in blocks], dim=-1)
        ctx.save_for_backward(z, sums)
        ctx.temperature = temperature
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        z, sums = ctx.saved_tensors
        sums = sums.masked_fill(sums.isneginf(), 0.0)  # a single sample: no share, not nan
        parts = []
        for b in _blocks(z.shape[-2]):
            scores = _own_scores(z, b, ctx.temperature)
            shares = (scores - sums[..., b, None]).exp_().mul_(grad[..., b, None])
            shares += scores.sub_(sums[..., None, :]).exp_().mul_(grad[..., None, :])
            parts.append(shares @ z)
        return torch.cat(parts, dim=-2) / ctx.temperature, None


def _accuracy(cross: Float[Tensor, "*k n n"]) -> Float[Tensor, " *k"]:
    found = cross.detach().argmax(dim=-1) == torch.arange(cross.shape[-1], device=cross.device)
    return 100 * found.float().mean(dim=-1)


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
        all_others = _OwnLogSums.apply(torch.cat([a, b]), temperature)
        return all_others.mean() - (a * b).sum(dim=-1).mean() / temperature


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
        z = [normalized(x) for x in (*views1, *views2)]
        if self.gather:
            z = gather_batch(z)
        with torch.autocast(z[0].device.type, enabled=False):
            terms, accuracy = self._terms(torch.stack(z).unflatten(0, (2, -1)))
        scale = terms.new_tensor(self.weights) if self.weights is not None else 1.0
        return LossOutput((terms * scale).mean(), terms, accuracy)

    def _terms(self, z: Float[Tensor, "2 k n dim"]) -> tuple[Tensor, Tensor]:
        """All terms at once; what several of them need is computed once.

        The prototypes' own block recurs in every term, and NCE(z'_all, z''_all) equals
        NCE(z''_all, z'_all), so that 2n + 1 cross blocks and 2n + 2 own blocks do.
        """
        own = _OwnLogSums.apply(z, self.temperature)  # (2, k, n)
        prototypes = z[:, -1:].flip(0)  # z'_k meets z''_all, and the other way round
        cross = z[:, :-1] @ prototypes.transpose(-1, -2) / self.temperature
        rows = torch.logaddexp(cross.logsumexp(dim=-1), own[:, :-1])
        columns = torch.logaddexp(cross.logsumexp(dim=-2), own[:, -1:].flip(0))
        positives = cross.diagonal(dim1=-2, dim2=-1)
        projected = ((rows + columns) / 2 - positives).mean(dim=(0, -1))
        last = z[0, -1] @ z[1, -1].T / self.temperature
        both = torch.logaddexp(last.logsumexp(dim=1), own[0, -1])
        both = both + torch.logaddexp(last.logsumexp(dim=0), own[1, -1])
        multimodal = (both / 2 - last.diagonal()).mean()
        accuracy = _accuracy(cross).mean(dim=0)
        joint = torch.stack([_accuracy(last), _accuracy(last.T)]).mean()
        return torch.cat([projected, multimodal[None]]), torch.cat([accuracy, joint[None]])
