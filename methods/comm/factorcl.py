"""FactorCL (Liang et al., 2023): bounds of shared and unique information, by critics.

Lower bounds (InfoNCE) are raised and upper bounds (CLUB) are lowered, each on a projection of its
own. FactorCL-SUP conditions on the task; FactorCL-SSL puts an augmentation in the task's place.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ritornello.methods.comm.baselines import Augment, SeparateEncoders, mlp_head
from ritornello.methods.comm.loss import LossOutput

_TERMS = ("shared", "shared_upper", "own", "conditional", "conditional_upper")


class PairCritic(nn.Module):
    """Scores f(x_i, y_j) of all pairs, by an MLP on the joined vectors.

    The first layer is split into its halves for x and for y, so that it is applied N times, not N².
    """

    def __init__(self, x_dim: int, y_dim: int, hidden: int = 512) -> None:
        super().__init__()
        self.of_x, self.of_y = nn.Linear(x_dim, hidden), nn.Linear(y_dim, hidden, bias=False)
        self.rest = nn.Sequential(
            nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, x: Float[Tensor, "n a"], y: Float[Tensor, "n b"]) -> Float[Tensor, "n n"]:
        """Row j, column i: the score of x_i with y_j."""
        return self.rest(self.of_x(x).unsqueeze(0) + self.of_y(y).unsqueeze(1)).squeeze(-1)


def infonce_bound(scores: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Lower bound of the mutual information: E f(x, y) − E log mean exp f."""
    return scores.diagonal().mean() - scores.logsumexp(dim=1).mean() + math.log(len(scores))


def club_bound(scores: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Upper bound of the mutual information: E f over pairs − E f over all."""
    return scores.diagonal().mean() - scores.mean()


class FactorCLLoss(nn.Module):
    """The bounds of FactorCL on five projections of each of two modalities, with their critics.

    The CLUB critics learn by their own InfoNCE objective, on fixed embeddings; everything else
    learns by the bounds, with the CLUB critics fixed. Both happen in one backward pass: no
    parameter gets a gradient from both.

    Args:
        dims: width of each modality's embedding.
        embed_dim: width of the projections.
        critic_hidden: width of the critics.
        task_dim: width of the task's vectors for FactorCL-SUP (one-hot classes, labels or targets);
            None for FactorCL-SSL.

    Raises:
        ValueError: another number of modalities than two.
    """

    def __init__(
        self,
        dims: Sequence[int],
        embed_dim: int = 128,
        critic_hidden: int = 512,
        *,
        task_dim: int | None = None,
    ) -> None:
        super().__init__()
        if len(dims) != 2:
            raise ValueError(f"dims must be the widths of 2 modalities, got {list(dims)}")
        self.projections = nn.ModuleList(
            nn.ModuleDict({term: mlp_head(dim, dim, embed_dim) for term in _TERMS}) for dim in dims
        )
        self.task_dim = task_dim
        given = embed_dim if task_dim is None else task_dim
        single = {"x_dim": embed_dim, "y_dim": embed_dim, "hidden": critic_hidden}
        own = {"x_dim": embed_dim, "y_dim": given, "hidden": critic_hidden}
        joined = embed_dim + given
        double = {"x_dim": joined, "y_dim": joined, "hidden": critic_hidden}
        self.critics = nn.ModuleDict(
            {
                "shared": PairCritic(**single),
                "shared_upper": PairCritic(**single),
                "own_0": PairCritic(**own),
                "own_1": PairCritic(**own),
                "conditional": PairCritic(**double),
                "conditional_upper": PairCritic(**double),
            }
        )

    def _project(self, modality: int, term: str, x: Tensor) -> Tensor:
        return self.projections[modality][term](x)  # type: ignore[index]

    def _condition(self, modality: int, term: str, given: Tensor) -> Tensor:
        """An augmentation is projected like the plain modality; the task goes in as it is."""
        return given if self.task_dim is not None else self._project(modality, term, given)

    def project(
        self, embeddings: Sequence[Float[Tensor, "n _"]]
    ) -> Float[Tensor, "n ten_projections"]:
        """The five projections of both modalities, joined: what is probed."""
        joined = [self._project(m, t, x) for m, x in enumerate(embeddings) for t in _TERMS]
        return torch.cat(joined, dim=1)

    def _given(
        self, n: int, augmented: Sequence[Tensor] | None, task: Tensor | None
    ) -> Sequence[Tensor]:
        """What takes the task's place with each modality."""
        if self.task_dim is None:
            if task is not None or augmented is None or [len(x) for x in augmented] != [n, n]:
                shapes = None if augmented is None else [tuple(x.shape) for x in augmented]
                raise ValueError(
                    f"augmented must be 2 modalities of the same {n} samples, without a task, "
                    f"got {shapes} {'and a task' if task is not None else ''}"
                )
            return augmented
        if augmented is not None or task is None or task.shape != (n, self.task_dim):
            raise ValueError(
                f"task must be ({n}, {self.task_dim}) and augmented None for FactorCL-SUP, "
                f"got {None if task is None else tuple(task.shape)}"
            )
        return [task, task]

    def forward(
        self,
        embeddings: Sequence[Float[Tensor, "n _"]],
        augmented: Sequence[Float[Tensor, "n _"]] | None = None,
        task: Float[Tensor, "n task_dim"] | None = None,
    ) -> LossOutput:
        """Σ −InfoNCE + Σ CLUB, and the critics' own objective.

        Args:
            embeddings: of both modalities.
            augmented: of an augmentation of them, for FactorCL-SSL.
            task: the task's vectors, for FactorCL-SUP.

        Raises:
            ValueError: not two modalities of the same samples, or not what is conditioned on.
        """
        if len(embeddings) != 2 or len(embeddings[0]) != len(embeddings[1]):
            raise ValueError(
                "embeddings must be 2 modalities of the same samples, "
                f"got {[tuple(x.shape) for x in embeddings]}"
            )
        given = self._given(len(embeddings[0]), augmented, task)
        bounds, learning = [], []
        for term in ("shared", "conditional"):
            for name in (term, f"{term}_upper"):
                sides = [self._project(m, name, embeddings[m]) for m in (0, 1)]
                if term == "conditional":
                    others = [self._condition(m, name, given[m]) for m in (0, 1)]
                    pairs = zip(sides, others, strict=True)
                    sides = [torch.cat(pair, dim=1) for pair in pairs]
                critic = self.critics[name]
                if name == term:
                    bounds.append(-infonce_bound(critic(*sides)))
                    continue
                fixed = {k: p.detach() for k, p in critic.named_parameters()}
                scores = torch.func.functional_call(critic, fixed, tuple(sides))
                bounds.append(club_bound(scores))
                learning.append(-infonce_bound(critic(*(s.detach() for s in sides))))
        for m in (0, 1):
            pair = self._project(m, "own", embeddings[m]), self._condition(m, "own", given[m])
            bounds.append(-infonce_bound(self.critics[f"own_{m}"](*pair)))
        terms = torch.stack(bounds)
        names = ("shared", "shared_upper", "conditional", "conditional_upper", "own_0", "own_1")
        loss = terms.sum() + torch.stack(learning).sum()
        return LossOutput(loss, terms, torch.full_like(terms, math.nan), names)


class FactorCL(SeparateEncoders):
    """FactorCL for two modalities; the five projections of each are what is probed.

    Args:
        encoders, dims: as in `CrossModal`.
        embed_dim, critic_hidden: see `FactorCLLoss`.
        task_dim: how many classes, labels or targets the task has, for FactorCL-SUP; None for
            FactorCL-SSL, which looks at no labels.
    """

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        dims: Sequence[int],
        *,
        embed_dim: int = 128,
        critic_hidden: int = 512,
        task_dim: int | None = None,
    ) -> None:
        super().__init__(encoders)
        if len(encoders) != 2:
            raise ValueError(f"FactorCL takes 2 modalities, got {len(encoders)}")
        self.loss = FactorCLLoss(dims, embed_dim, critic_hidden, task_dim=task_dim)

    def training_loss(
        self, inputs: Sequence[Any], augment: Augment, labels: Tensor | None = None
    ) -> LossOutput:
        """The loss of a batch: plain inputs, and one augmentation or the labels."""
        if self.loss.task_dim is None:
            return self.loss(self.backbone(inputs), self.backbone(augment(inputs)))
        if labels is None:
            raise ValueError("labels must be given: this baseline is supervised")
        if labels.ndim == 1:
            labels = nn.functional.one_hot(labels, self.loss.task_dim)
        return self.loss(self.backbone(inputs), task=labels.float())

    def features(self, inputs: Sequence[Any]) -> dict[str, Float[Tensor, "batch dim"]]:
        """The projections of both modalities, and what they project."""
        backbone = self.backbone(inputs)
        return {"projected": self.loss.project(backbone), "backbone": torch.cat(backbone, dim=1)}
