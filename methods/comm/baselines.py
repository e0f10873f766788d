"""What the paper compares with, behind CoMM's interface: `training_loss` and `features`.

Cross (CLIP, and CMC for more than two modalities), Cross+Self (SLIP's idea), SimCLR for each
modality, SupCon and plain supervision. FactorCL has a module of its own.
"""

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ritornello.methods.comm.encoder import MultimodalEncoder
from ritornello.methods.comm.gather import gather_batch
from ritornello.methods.comm.loss import (
    LossOutput,
    check_pair,
    check_temperature,
    normalized,
    nt_xent,
)

Augment = Callable[[Sequence[Any]], Sequence[Any]]


def retrieval_accuracy(a: Float[Tensor, "n dim"], b: Float[Tensor, "n dim"]) -> Tensor:
    """Percentage of rows of `a` whose nearest row of `b`, by cosine, is their own."""
    nearest = (normalized(a.detach()) @ normalized(b.detach()).T).argmax(dim=1)
    return 100 * (nearest == torch.arange(len(a), device=a.device)).float().mean()


class CLIPLoss(nn.Module):
    """Cross-modal InfoNCE of CLIP: negatives across modalities only, a learned temperature.

    Args:
        temperature: its start, 0.07; kept within [0.01, 1].
        gather: takes the samples of all processes, with gradients.
    """

    def __init__(self, temperature: float = 0.07, *, gather: bool = True) -> None:
        super().__init__()
        check_temperature(temperature)
        self.logit_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        self.gather = gather

    def forward(self, a: Float[Tensor, "n dim"], b: Float[Tensor, "n dim"]) -> LossOutput:
        """Mean of the two directions' cross entropies."""
        check_pair(a, b, "the two modalities")
        a, b = normalized(a), normalized(b)
        if self.gather:
            a, b = gather_batch([a, b])
        scale = self.logit_scale.clamp(0.0, math.log(100.0)).exp()
        with torch.autocast(a.device.type, enabled=False):
            logits, own = scale * a @ b.T, torch.arange(len(a), device=a.device)
            loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
        return LossOutput(loss, loss[None], retrieval_accuracy(a, b)[None], ("cross",))


class CMCLoss(nn.Module):
    """NT-Xent of every pair of modalities, averaged (CMC)."""

    def __init__(self, temperature: float = 0.1, *, gather: bool = True) -> None:
        super().__init__()
        check_temperature(temperature)
        self.temperature, self.gather = temperature, gather

    def forward(self, embeddings: Sequence[Float[Tensor, "n dim"]]) -> LossOutput:
        """Raises ValueError for fewer than two modalities."""
        if len(embeddings) < 2:
            raise ValueError(f"embeddings must hold at least 2 modalities, got {len(embeddings)}")
        pairs = list(combinations(embeddings, 2))
        terms = torch.stack([nt_xent(a, b, self.temperature, gather=self.gather) for a, b in pairs])
        accuracy = torch.stack([retrieval_accuracy(a, b) for a, b in pairs])
        return LossOutput(terms.mean(), terms, accuracy)


class CrossSelfLoss(nn.Module):
    """Cross-modal NT-Xent plus the mean NT-Xent of each modality with itself.

    Args:
        temperature: of all terms.
        self_weight: of the mean over modalities.
        cross_weight: of the cross-modal term; 0 leaves SimCLR on each modality.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        self_weight: float = 1.0,
        cross_weight: float = 1.0,
        gather: bool = True,
    ) -> None:
        super().__init__()
        self.cross = CMCLoss(temperature, gather=gather)
        self.self_weight, self.cross_weight = self_weight, cross_weight

    def forward(
        self,
        originals: Sequence[Float[Tensor, "n dim"]],
        augmented: Sequence[tuple[Float[Tensor, "n dim"], Float[Tensor, "n dim"]]],
    ) -> LossOutput:
        """Terms: cross, then each modality.

        Args:
            originals: projections of the plain modalities.
            augmented: for each modality the projections of two augmentations.
        """
        cross = self.cross(originals)
        own = torch.stack(
            [nt_xent(a, b, self.cross.temperature, gather=self.cross.gather) for a, b in augmented]
        )
        loss = self.cross_weight * cross.loss + self.self_weight * own.mean()
        accuracy = torch.stack([retrieval_accuracy(a, b) for a, b in augmented])
        terms = torch.cat([cross.loss[None], own])
        return LossOutput(loss, terms, torch.cat([cross.accuracy.mean()[None], accuracy]))


def supcon_loss(
    features: Float[Tensor, "n views dim"],
    labels: Int[Tensor, " n"],
    temperature: float = 0.07,
) -> Float[Tensor, ""]:
    """Supervised contrastive loss over all views (Khosla et al., 2020); normalises the features.

    Raises:
        ValueError: shapes that do not fit.
    """
    check_temperature(temperature)
    if features.ndim != 3 or labels.shape != features.shape[:1]:
        raise ValueError(
            "features must be (samples, views, dim) and labels (samples,), "
            f"got {tuple(features.shape)} and {tuple(labels.shape)}"
        )
    z = normalized(features).transpose(0, 1).flatten(0, 1)
    labels = labels.repeat(features.shape[1])
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    logits = (z @ z.T / temperature).masked_fill(itself, -math.inf)
    alike = (labels[:, None] == labels[None, :]) & ~itself
    log_share = logits.log_softmax(dim=1).masked_fill(~alike, 0.0)
    return -(log_share.sum(dim=1) / alike.sum(dim=1).clamp(min=1)).mean()


def mlp_head(in_dim: int, hidden: int, out_dim: int) -> nn.Sequential:
    """One hidden layer, ReLU."""
    return nn.Sequential(nn.Linear(in_dim, hidden), nn.ReLU(), nn.Linear(hidden, out_dim))


class SeparateEncoders(nn.Module):
    """Encoders without fusion: their outputs, flattened, are what is probed.

    Args:
        encoders: one a modality, yielding tensors of any shape.
    """

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        if len(encoders) < 2:
            raise ValueError(f"encoders must be at least 2, got {len(encoders)}")
        self.encoders = nn.ModuleList(encoders)

    def backbone(self, inputs: Sequence[Any]) -> list[Float[Tensor, "batch dim"]]:
        """What each encoder yields, as vectors."""
        if len(inputs) != len(self.encoders) or any(x is None for x in inputs):
            raise ValueError(
                f"inputs must be {len(self.encoders)} modalities, none of them missing, "
                f"got {[None if x is None else '…' for x in inputs]}"
            )
        pairs = zip(self.encoders, inputs, strict=True)
        return [encoder(x).flatten(1) for encoder, x in pairs]

    def features(self, inputs: Sequence[Any]) -> dict[str, Float[Tensor, "batch dim"]]:
        """What a linear probe reads, the one that the paper probes first."""
        return {"backbone": torch.cat(self.backbone(inputs), dim=1)}


class CrossModal(SeparateEncoders):
    """Cross: CLIP for two modalities, CMC for more. The projections are what the paper probes.

    Args:
        encoders: one a modality.
        dims: width of each encoder's output, flattened.
        embed_dim: width of the linear projections.
        augment_inputs: trains on augmented inputs instead of plain ones.
    """

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        dims: Sequence[int],
        embed_dim: int = 256,
        *,
        augment_inputs: bool = False,
    ) -> None:
        super().__init__(encoders)
        self.projections = nn.ModuleList(nn.Linear(dim, embed_dim, bias=False) for dim in dims)
        for projection in self.projections:
            nn.init.normal_(projection.weight, std=projection.in_features**-0.5)  # type: ignore
        self.loss = CLIPLoss() if len(encoders) == 2 else CMCLoss()
        self.augment_inputs = augment_inputs

    def project(self, inputs: Sequence[Any]) -> list[Float[Tensor, "batch dim"]]:
        """The embeddings that are contrasted."""
        pairs = zip(self.projections, self.backbone(inputs), strict=True)
        return [projection(x) for projection, x in pairs]

    def training_loss(
        self, inputs: Sequence[Any], augment: Augment, labels: Tensor | None = None
    ) -> LossOutput:
        """The loss of a batch."""
        z = self.project(augment(inputs) if self.augment_inputs else inputs)
        return self.loss(*z) if isinstance(self.loss, CLIPLoss) else self.loss(z)

    def features(self, inputs: Sequence[Any]) -> dict[str, Float[Tensor, "batch dim"]]:
        """The projections joined, and what they project."""
        backbone = self.backbone(inputs)
        pairs = zip(self.projections, backbone, strict=True)
        projected = torch.cat([projection(x) for projection, x in pairs], dim=1)
        return {"projected": projected, "backbone": torch.cat(backbone, dim=1)}


class CrossSelf(SeparateEncoders):
    """Cross+Self, with an MLP head a modality; `cross_weight=0` is SimCLR on each modality.

    Args:
        encoders, dims: as in `CrossModal`.
        hidden, embed_dim: of the heads.
        temperature, self_weight, cross_weight: see `CrossSelfLoss`.
    """

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        dims: Sequence[int],
        *,
        hidden: int = 512,
        embed_dim: int = 256,
        temperature: float = 0.1,
        self_weight: float = 1.0,
        cross_weight: float = 1.0,
    ) -> None:
        super().__init__(encoders)
        self.heads = nn.ModuleList(mlp_head(dim, hidden, embed_dim) for dim in dims)
        self.loss = CrossSelfLoss(temperature, self_weight=self_weight, cross_weight=cross_weight)

    def training_loss(
        self, inputs: Sequence[Any], augment: Augment, labels: Tensor | None = None
    ) -> LossOutput:
        """The loss of a batch: plain inputs and two augmentations."""
        plain, first, second = (
            [head(x) for head, x in zip(self.heads, self.backbone(view), strict=True)]
            for view in (inputs, augment(inputs), augment(inputs))
        )
        return self.loss(plain, list(zip(first, second, strict=True)))


class SupCon(SeparateEncoders):
    """Supervised contrast in which the modalities are the views of a sample."""

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        dims: Sequence[int],
        *,
        hidden: int = 512,
        embed_dim: int = 256,
        temperature: float = 0.07,
    ) -> None:
        super().__init__(encoders)
        self.heads = nn.ModuleList(mlp_head(dim, hidden, embed_dim) for dim in dims)
        self.temperature = temperature

    def training_loss(
        self, inputs: Sequence[Any], augment: Augment, labels: Tensor | None = None
    ) -> LossOutput:
        """The loss of a batch; needs labels."""
        if labels is None:
            raise ValueError("labels must be given: this baseline is supervised")
        z = [head(x) for head, x in zip(self.heads, self.backbone(augment(inputs)), strict=True)]
        loss = supcon_loss(torch.stack(z, dim=1), labels, self.temperature)
        return LossOutput(loss, loss[None], retrieval_accuracy(z[0], z[1])[None], ("supcon",))


def _column_loss(found: Tensor, labels: Tensor) -> LossOutput:
    """Squared error of columns of numbers; cross entropy of 0/1 columns, with the share told."""
    if labels.is_floating_point():
        loss, name = F.mse_loss(found, labels), "squared_error"
        return LossOutput(loss, loss[None], loss.new_full((1,), math.nan), (name,))
    loss = F.binary_cross_entropy_with_logits(found, labels.to(found.dtype))
    hit = ((found > 0) == labels.bool()).float().mean()
    return LossOutput(loss, loss[None], 100 * hit[None], ("cross_entropy",))


class Supervised(nn.Module):
    """Cross entropy on CoMM's own architecture, from scratch.

    Args:
        encoder: fresh.
        n_classes: classes; with `multilabel`, independent labels.
    """

    def __init__(
        self, encoder: MultimodalEncoder, n_classes: int, *, multilabel: bool = False
    ) -> None:
        super().__init__()
        self.encoder, self.multilabel = encoder, multilabel
        self.classifier = nn.Linear(encoder.fusion_transformer.width, n_classes)

    def training_loss(
        self, inputs: Sequence[Any], augment: Augment, labels: Tensor | None = None
    ) -> LossOutput:
        """The loss of a batch; needs labels."""
        if labels is None:
            raise ValueError("labels must be given: this baseline is supervised")
        logits = self.classifier(self.encoder(augment(inputs)))
        if self.multilabel:
            return _column_loss(logits, labels)
        loss = F.cross_entropy(logits, labels)
        hit = (logits.argmax(dim=1) == labels).float().mean()
        return LossOutput(loss, loss[None], 100 * hit[None], ("cross_entropy",))

    def features(self, inputs: Sequence[Any]) -> dict[str, Float[Tensor, "batch dim"]]:
        """The fused embedding."""
        return {"fused": self.encoder(inputs)}


class FineTuned(nn.Module):
    """CoMM trained further with labels, end to end: the supervised rows of its tables.

    With one class a sample, two augmentations of a tuple and all others of its class attract each
    other (supervised contrast on the fused embedding); columns of labels or numbers are read off it
    by a linear layer.

    Args:
        encoder: of a trained CoMM.
        columns: of labels or numbers; None for one class a sample.
        temperature: of the contrast.
    """

    def __init__(
        self, encoder: MultimodalEncoder, columns: int | None = None, *, temperature: float = 0.07
    ) -> None:
        super().__init__()
        self.encoder, self.temperature = encoder, temperature
        width = encoder.fusion_transformer.width
        self.readout = None
        if columns is not None:
            self.readout = nn.Linear(width, columns)
            nn.init.zeros_(self.readout.weight)
            nn.init.zeros_(self.readout.bias)

    def training_loss(
        self, inputs: Sequence[Any], augment: Augment, labels: Tensor | None = None
    ) -> LossOutput:
        """The loss of a batch; needs labels."""
        if labels is None:
            raise ValueError("labels must be given: fine-tuning is supervised")
        if self.readout is not None:
            return _column_loss(self.readout(self.encoder(augment(inputs))), labels)
        z = torch.stack([self.encoder(augment(inputs)) for _ in range(2)], dim=1)
        loss = supcon_loss(z, labels, self.temperature)
        accuracy = retrieval_accuracy(z[:, 0], z[:, 1])
        return LossOutput(loss, loss[None], accuracy[None], ("supcon",))

    def features(self, inputs: Sequence[Any]) -> dict[str, Float[Tensor, "batch dim"]]:
        """The fused embedding."""
        return {"fused": self.encoder(inputs)}
