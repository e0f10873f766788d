"""The arms: CoMM and what it is compared with, on whatever encoders a part brings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ritornello.common.errors import UserError
from ritornello.methods.comm import (
    CoMM,
    CrossModal,
    CrossSelf,
    FactorCL,
    FineTuned,
    FusionTransformer,
    MultimodalEncoder,
    SupCon,
    Supervised,
)
from ritornello.methods.comm.baselines import SeparateEncoders
from ritornello.methods.comm.model import projection_head


@dataclass
class Architecture:
    """Fresh encoders with what CoMM needs to join them.

    Attributes:
        encoders, adapters: one a modality.
        dims: width of each encoder's output, flattened: what the baselines project.
        width, heads: of the fusion transformer.
        whole: encoders for fusion, where those for the baselines pool what these yield.
    """

    encoders: list[nn.Module]
    adapters: list[nn.Module | None]
    dims: list[int]
    width: int
    heads: int = 8
    whole: list[nn.Module] | None = None

    def fused(self) -> MultimodalEncoder:
        """The encoders under a fusion transformer of one layer."""
        fusion = FusionTransformer(self.width, self.heads)
        return MultimodalEncoder(self.whole or self.encoders, self.adapters, fusion)


@dataclass(frozen=True)
class Arm:
    """What is trained.

    Args:
        lr: its learning rate; the recipe's when None.
        batch: its batch size; the recipe's when None.
    """

    lr: float | None = None
    batch: int | None = None
    supervised = False

    def build(self, architecture: Architecture, n_classes: int, multilabel: bool) -> nn.Module:
        """A fresh model with `training_loss` and `features`.

        Args:
            n_classes: classes of a sample, or with `multilabel` its columns of labels or numbers.
        """
        raise TypeError(f"{type(self).__name__} does not define build()")

    def stages(
        self, architecture: Architecture, n_classes: int, multilabel: bool
    ) -> Iterator[nn.Module]:
        """The models that are trained one after the other; the last of them is measured."""
        yield self.build(architecture, n_classes, multilabel)


@dataclass(frozen=True)
class CoMMArm(Arm):
    """CoMM; `weights` of the terms for the ablation (each modality, then all together)."""

    head_hidden: int = 512
    head_dim: int = 256
    temperature: float = 0.1
    weights: Sequence[float] | None = None

    def build(self, architecture: Architecture, n_classes: int, multilabel: bool) -> nn.Module:
        """CoMM with a head of this width."""
        head = projection_head(architecture.width, self.head_hidden, self.head_dim)
        return CoMM(architecture.fused(), head, temperature=self.temperature, weights=self.weights)


@dataclass(frozen=True)
class FineTunedArm(CoMMArm):
    """CoMM, then its encoder trained with labels for as many steps again."""

    supervised = True

    def stages(
        self, architecture: Architecture, n_classes: int, multilabel: bool
    ) -> Iterator[nn.Module]:
        """CoMM, and what its encoder becomes with labels."""
        comm = self.build(architecture, n_classes, multilabel)
        assert isinstance(comm, CoMM)
        yield comm
        yield FineTuned(comm.encoder, n_classes if multilabel else None)


class Joined(SeparateEncoders):
    """The outputs of all encoders, joined."""

    def features(self, inputs: Sequence[Any]) -> dict[str, Tensor]:
        """What a probe reads."""
        return {"backbone": torch.cat(self.backbone(inputs), dim=1)}


@dataclass(frozen=True)
class FrozenArm(Arm):
    """Pretrained encoders as they come: nothing is trained but the probe."""

    def build(self, architecture: Architecture, n_classes: int, multilabel: bool) -> nn.Module:
        """The encoders, side by side."""
        return Joined(architecture.encoders).requires_grad_(False)


@dataclass(frozen=True)
class CrossArm(Arm):
    """Cross: CLIP, or CMC for three modalities."""

    embed_dim: int = 256
    augment_inputs: bool = False

    def build(self, architecture: Architecture, n_classes: int, multilabel: bool) -> nn.Module:
        """Encoders with linear projections."""
        a = architecture
        return CrossModal(a.encoders, a.dims, self.embed_dim, augment_inputs=self.augment_inputs)


@dataclass(frozen=True)
class CrossSelfArm(Arm):
    """Cross+Self; without its cross term SimCLR on each modality."""

    hidden: int = 512
    embed_dim: int = 256
    temperature: float = 0.1
    cross_weight: float = 1.0

    def build(self, architecture: Architecture, n_classes: int, multilabel: bool) -> nn.Module:
        """Encoders with MLP heads."""
        a = architecture
        return CrossSelf(
            a.encoders, a.dims, hidden=self.hidden, embed_dim=self.embed_dim,
            temperature=self.temperature, cross_weight=self.cross_weight,
        )  # fmt: skip


@dataclass(frozen=True)
class FactorCLArm(Arm):
    """FactorCL-SSL."""

    embed_dim: int = 128
    critic_hidden: int = 512

    def build(self, architecture: Architecture, n_classes: int, multilabel: bool) -> nn.Module:
        """Encoders with projections and critics."""
        a = architecture
        return FactorCL(
            a.encoders, a.dims, embed_dim=self.embed_dim, critic_hidden=self.critic_hidden,
            task_dim=n_classes if self.supervised else None,
        )  # fmt: skip


@dataclass(frozen=True)
class FactorCLSupArm(FactorCLArm):
    """FactorCL-SUP: labels in place of the augmentation."""

    supervised = True


@dataclass(frozen=True)
class SupConArm(Arm):
    """Supervised contrast between the modalities."""

    hidden: int = 512
    embed_dim: int = 256
    supervised = True

    def build(self, architecture: Architecture, n_classes: int, multilabel: bool) -> nn.Module:
        """Encoders with MLP heads; one class a sample."""
        if multilabel:
            raise UserError("SupCon takes one class a sample: leave it out where there are several")
        a = architecture
        return SupCon(a.encoders, a.dims, hidden=self.hidden, embed_dim=self.embed_dim)


@dataclass(frozen=True)
class SupervisedArm(Arm):
    """Cross entropy on CoMM's architecture: the supervised reference."""

    supervised = True

    def build(self, architecture: Architecture, n_classes: int, multilabel: bool) -> nn.Module:
        """CoMM's encoder under a linear classifier."""
        return Supervised(architecture.fused(), n_classes, multilabel=multilabel)
