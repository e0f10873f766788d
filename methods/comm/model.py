"""CoMM: contrast of multimodal embeddings, and of each modality with them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ritornello.methods.comm.baselines import Augment
from ritornello.methods.comm.encoder import MultimodalEncoder, projected_subsets
from ritornello.methods.comm.loss import CoMMLoss, LossOutput
from ritornello.methods.comm.probe import linear_probe


def projection_head(in_dim: int, hidden: int = 512, out_dim: int = 256) -> nn.Sequential:
    """Three layers with batch norm; `nn.SyncBatchNorm.convert_sync_batchnorm` for DDP."""
    return nn.Sequential(
        nn.Linear(in_dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
        nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
        nn.Linear(hidden, out_dim),
    )  # fmt: skip


def per_batch(
    head: nn.Module, batches: Float[Tensor, "batches n in_dim"]
) -> Sequence[Float[Tensor, "n out_dim"]]:
    """The head of several batches, each of them a batch of its own to the batch norm.

    Known layers run once for all batches.
    """
    known = (nn.Linear, nn.ReLU, nn.BatchNorm1d)
    if not (isinstance(head, nn.Sequential) and all(type(layer) in known for layer in head)):
        return [head(z) for z in batches]
    z = batches.transpose(0, 1)
    for layer in head:
        z = _norm_apart(layer, z) if isinstance(layer, nn.BatchNorm1d) else layer(z)
    return z.unbind(dim=1)


def _norm_apart(
    layer: nn.BatchNorm1d, z: Float[Tensor, "n batches dim"]
) -> Float[Tensor, "n batches dim"]:
    """Batch norm of each batch, one after another: here as channels of one batch."""
    momentum, batches = layer.momentum, z.shape[1]
    if not (layer.training and layer.affine and layer.track_running_stats and momentum):
        return torch.stack([layer(batch) for batch in z.unbind(dim=1)], dim=1)
    weight, bias = layer.weight.repeat(batches), layer.bias.repeat(batches)
    # with a momentum of 1 the running statistics become those of the batches
    mean, variance = torch.zeros_like(weight), torch.zeros_like(weight)
    normed = F.batch_norm(
        z.flatten(1), mean, variance, weight, bias, training=True, momentum=1.0, eps=layer.eps
    )
    for running, found in ((layer.running_mean, mean), (layer.running_var, variance)):
        assert running is not None
        for of_batch in found.detach().unflatten(0, (batches, -1)):
            running.lerp_(of_batch, momentum)
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked += batches
    return normed.unflatten(1, (batches, -1))


class CoMM(nn.Module):
    """The multimodal encoder with its head and loss (section 3).

    Args:
        encoder: joins the modalities.
        head: from the fused embedding to where it is contrasted; 512-512-256 when None.
        temperature, weights: of the loss.
        gather: contrasts with the samples of all processes.
    """

    def __init__(
        self,
        encoder: MultimodalEncoder,
        head: nn.Module | None = None,
        *,
        temperature: float = 0.1,
        weights: Sequence[float] | None = None,
        gather: bool = True,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = projection_head(encoder.fusion_transformer.width) if head is None else head
        self.loss = CoMMLoss(temperature, weights, gather=gather)

    def forward(self, view1: Sequence[Any], view2: Sequence[Any]) -> LossOutput:
        """The loss of two augmentations of one batch; the last term is the multimodal one.

        Raises:
            ValueError: a missing modality, or a batch of one sample in training.
        """
        subsets = projected_subsets(self.encoder.n_modalities)
        fused = self.encoder.embed_views([view1, view2], subsets)
        if self.training and fused.shape[2] < 2:
            raise ValueError("a batch must have at least 2 samples in training, got 1")
        n = self.encoder.n_modalities + 1
        projected = per_batch(self.head, fused.flatten(0, 1))
        return self.loss(projected[:n], projected[n:])

    def training_loss(
        self, inputs: Sequence[Any], augment: Augment, labels: Tensor | None = None
    ) -> LossOutput:
        """The loss of a batch, augmented twice; labels are not looked at."""
        return self(augment(inputs), augment(inputs))

    def embed(
        self, inputs: Sequence[Any], present: Sequence[bool] | None = None
    ) -> Float[Tensor, "batch width"]:
        """The fused embedding, before the head.

        Args:
            inputs: one entry a modality, None where it is missing.
            present: which modalities to use; all that are given when None.
        """
        if present is None:
            return self.encoder(inputs)  # type: ignore[return-value]
        return self.encoder(inputs, [present])[0]

    def features(self, inputs: Sequence[Any]) -> dict[str, Float[Tensor, "batch width"]]:
        """What a linear probe reads."""
        return {"fused": self.embed(inputs)}


@torch.no_grad()
def extract_features(
    embed: Callable[[Sequence[Any]], Tensor],
    inputs: Sequence[Tensor | None],
    batch_size: int = 512,
) -> Float[Tensor, "samples dim"]:
    """Embeds a data set by batches, as float32 on the CPU."""
    given = [x for x in inputs if x is not None]
    if not given:
        raise ValueError("all modalities are missing: give at least one that is not None")
    parts = []
    for first in range(0, len(given[0]), batch_size):
        rows = [None if x is None else x[first : first + batch_size] for x in inputs]
        parts.append(embed(rows).float().cpu())
    return torch.cat(parts)


def interaction_report(
    model: CoMM,
    train: Sequence[Tensor],
    test: Sequence[Tensor],
    labels: Mapping[str, tuple[Tensor, Tensor]],
    **probe: Any,
) -> dict[str, dict[str, float]]:
    """Which modality gives what: probe scores of every label from each modality alone and from all.

    A label that every modality alone predicts is shared; one that a single modality predicts is
    unique to it; one that only all together predict is synergy.

    Args:
        train, test: the modalities of a training and a test set.
        labels: for each name the labels of both sets.
        probe: arguments of `linear_probe`.

    Returns:
        For each label the score by subset: `modality 0`, …, `all`.
    """
    training = model.training
    model.eval()
    subsets = projected_subsets(model.encoder.n_modalities)
    names = [f"modality {m}" for m in range(len(subsets) - 1)] + ["all"]
    report: dict[str, dict[str, float]] = {name: {} for name in labels}
    for subset, subset_name in zip(subsets, names, strict=True):

        def embed(x: Sequence[Any], subset: Sequence[bool] = subset) -> Tensor:
            return model.embed(x, subset)

        features = extract_features(embed, train), extract_features(embed, test)
        for name, (of_train, of_test) in labels.items():
            score = linear_probe((features[0], of_train), (features[1], of_test), **probe)
            report[name][subset_name] = score.value
    model.train(training)
    return report
