"""Floating-point operations of a forward pass, counted (appendix; multiply and add are two)."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one decoder layer.

    Attributes:
        dim: D. query_dim: H d. key_value_dim: K d. hidden: F.
        gated: whether the MLP has a gate.
    """

    dim: int
    query_dim: int
    key_value_dim: int
    hidden: int
    gated: bool

    def attention(self, batch: int, tokens: int, query_dim: int, key_value_dim: int) -> int:
        """2BS(D H d + 2 D K d + H d D) + 4 B S^2 H d with the given numbers of channels."""
        projections = 2 * self.dim * query_dim + 2 * self.dim * key_value_dim
        return 2 * batch * tokens * projections + 4 * batch * tokens**2 * query_dim

    def mlp(self, batch: int, tokens: int, hidden: int) -> int:
        """6BSDF, without a gate 4BSDF."""
        return (6 if self.gated else 4) * batch * tokens * self.dim * hidden

    def front_half(self, batch: int, tokens: int) -> int:
        """Both blocks up to their last matrix, on a probe of (batch, tokens)."""
        last = 2 * batch * tokens * self.dim
        attention = self.attention(batch, tokens, self.query_dim, self.key_value_dim)
        mlp = self.mlp(batch, tokens, self.hidden)
        return attention + mlp - last * (self.query_dim + self.hidden)


@dataclass(frozen=True)
class FlopCount:
    """FLOPs of all decoder layers (embeddings and output head are not counted).

    Attributes:
        dense: every layer whole. probe: of the probes. pruned: what runs, without the probes.
        dense_pruned_layers, pruned_layers: the same for the layers that are pruned.
    """

    dense: int
    probe: int
    pruned: int
    dense_pruned_layers: int
    pruned_layers: int

    @property
    def probe_share(self) -> float:
        """Cost of probing as a share of the dense model."""
        return self.probe / self.dense

    @property
    def pruned_share(self) -> float:
        """What runs, without the probes, as a share of the dense model."""
        return self.pruned / self.dense


def count_flops(
    shape: LayerShape,
    kept: Mapping[int, tuple[int, int]],
    num_layers: int,
    batch: int,
    tokens: int,
    probe: tuple[int, int] | None,
) -> FlopCount:
    """Counts a forward pass.

    Args:
        shape: of a layer.
        kept: (query channels, MLP channels) that each pruned layer keeps.
        num_layers: of the model.
        batch: samples.
        tokens: length of a sample.
        probe: (samples, tokens) of the probe, None without one.
    """
    whole = shape.attention(batch, tokens, shape.query_dim, shape.key_value_dim)
    whole += shape.mlp(batch, tokens, shape.hidden)
    grouped = shape.key_value_dim != shape.query_dim
    pruned = sum(
        shape.attention(batch, tokens, query, shape.key_value_dim if grouped else query)
        + shape.mlp(batch, tokens, hidden)
        for query, hidden in kept.values()
    )
    return FlopCount(
        dense=num_layers * whole,
        probe=len(kept) * shape.front_half(*probe) if probe else 0,
        pruned=(num_layers - len(kept)) * whole + pruned,
        dense_pruned_layers=len(kept) * whole,
        pruned_layers=pruned,
    )
