"""The two kinds of block: what a probe says about them, and their pruned forward (section 3).

Shapes: B batch, S tokens, D width, H heads of d, F channels of the MLP; a prime marks the probe.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ritornello.methods.probe_pruning import scores
from ritornello.methods.probe_pruning.architecture import (
    LayerParts,
    Rotary,
    attend,
    normalise,
    rotate,
)
from ritornello.methods.probe_pruning.baselines import compensating_bias
from ritornello.methods.probe_pruning.config import ProbePruningConfig
from ritornello.methods.probe_pruning.history import BlockHistory, fuse_states, mean_squares
from ritornello.methods.probe_pruning.kept_linear import KeptColumns, KeptRows, weight_identity
from ritornello.methods.probe_pruning.probe import probe_positions
from ritornello.methods.probe_pruning.selection import (
    head_channels,
    keep_highest,
    num_channels_to_prune,
    num_heads_to_prune,
)

Present = Bool[Tensor, "batch tokens"] | None


class Block:
    """What both kinds share: the last matrix, its history and the energies of its channels."""

    def __init__(self, last: nn.Linear, norm: nn.Module | None, config: ProbePruningConfig) -> None:
        self.last = last
        self.norm = norm
        self.config = config
        self.fixed_weight = config.fixed_weight
        self.history: BlockHistory | None = None
        self.kept_columns = KeptColumns(last)
        self.bias: Tensor | None = None
        self._columns: tuple[tuple, Tensor] | None = None

    def normalise(self, residual: Float[Tensor, "B S D"]) -> Float[Tensor, "B S D"]:
        """h: the block's input; the residual itself in layers that normalise afterwards."""
        return residual if self.norm is None else normalise(self.norm, residual)

    @property
    def past(self) -> BlockHistory:
        """The history, once there is one."""
        if self.history is None:
            raise ValueError("there is no history: call calibrate(...) or load_history(...) first")
        return self.history

    def record(self, states: Float[Tensor, "B S C"]) -> None:
        """One batch of calibration."""
        if self.history is None:
            flap = self.config.score == "flap" or self.config.bias_compensation
            legacy = flap and self.config.legacy_flap
            self.history = BlockHistory.zeros(states, flap=flap, legacy_flap=legacy)
        self.history.accumulate(states)

    def follow(self, states: Float[Tensor, "B S kept"], kept: Tensor, present: Present) -> None:
        """Moving average of the history over what was just served."""
        score = self.config.score
        fresh = mean_squares(states, present, center=score == "flap")
        self.past.update(fresh, kept, score=score, momentum=self.config.momentum)

    @property
    def columns(self) -> Float[Tensor, " C"]:
        """`scores.column_weights` of the last matrix, computed once."""
        identity = weight_identity(self.last.weight)
        if self._columns is None or self._columns[0] != identity:
            self._columns = (
                identity,
                scores.column_weights(self.last.weight, self.config.score),
            )
        return self._columns[1]

    def static_energy(self) -> Float[Tensor, " C"]:
        """e from the history alone, over all its positions."""
        return self.past.statistic(self.config.score).sum(0)

    def compensate(self, kept: Int[Tensor, " kept"]) -> None:
        """Replaces what is removed by its mean effect (FLAP)."""
        mean = self.past.mean
        if mean is None:
            raise ValueError("this history has no means: calibrate with bias_compensation=True")
        self.bias = compensating_bias(self.last.weight, mean, kept)

    def finish(self, states: Float[Tensor, "B S kept"], kept: Tensor) -> Float[Tensor, "B S D"]:
        """The last matrix on the kept channels."""
        out = self.kept_columns(states, kept)
        return out if self.bias is None else out.add_(self.bias)

    def positions(
        self, residual: Float[Tensor, "B S D"], present: Present
    ) -> tuple[Int[Tensor, " B'"], Int[Tensor, " S'"]]:
        """Samples and tokens of the probe; the whole batch for full-batch probing."""
        if self.config.method == "full_batch":
            samples, tokens = (torch.arange(n, device=residual.device) for n in residual.shape[:2])
            return samples, tokens
        return probe_positions(residual, self.config.probe_ratios, self.config.order, present)

    def energy(
        self, states: Float[Tensor, "B' S' C"], tokens: Int[Tensor, " S'"], present: Present
    ) -> Float[Tensor, " C"]:
        """e: mean squares of the probe, fused with the history, summed over positions."""
        config = self.config
        squares = mean_squares(states, present, center=config.score == "flap")
        if config.reads_history:
            self.history = self.past.to(squares.device)
            past = self.history.statistic(config.score).index_select(0, tokens)
            squares = fuse_states(squares, past, config.fusion, self.fixed_weight)
        return squares.sum(0)


class AttentionBlock(Block):
    """Attention of which some query heads take part."""

    def __init__(self, parts: LayerParts, config: ProbePruningConfig) -> None:
        super().__init__(parts.output, parts.attention_norm if parts.norm_first else None, config)
        self.parts = parts
        self.kept_query = KeptRows(parts.query)
        self.kept_key = KeptRows(parts.key)
        self.kept_value = KeptRows(parts.value)

    def choose(
        self,
        residual: Float[Tensor, "B S D"],
        ratio: float,
        mask: Tensor | None,
        rotary: Rotary | None,
        present: Present,
    ) -> Int[Tensor, " heads"]:
        """Probes the block and picks the heads to keep.

        Args:
            residual: the stream before the norm.
            ratio: of heads to remove.
            mask: (B or 1, 1, S, keys) of the batch; causal without one.
            rotary: cosines and sines at the batch's positions.
            present: false at pads.
        """
        samples, tokens = self.positions(residual, present)
        picked = samples[:, None], tokens
        probe = self.normalise(residual[picked])
        if rotary is not None:
            # Positions are those of the chosen tokens, not 0..S'-1.
            cos, sin = (table[picked] if len(table) > 1 else table[:, tokens] for table in rotary)
            rotary = cos, sin
        if mask is not None:
            rows = mask if len(mask) == 1 else mask[samples]
            mask = rows[:, :, tokens][..., tokens]
        query, key, value = (
            self._heads(linear(probe))
            for linear in (self.parts.query, self.parts.key, self.parts.value)
        )
        everyone = torch.arange(self.parts.heads, device=probe.device)
        key, value = self._shared(rotate(key, rotary), value, everyone)
        states = attend(rotate(query, rotary), key, value, mask)
        there = None if present is None else present[picked]
        return self.pick(self.energy(states, tokens, there), ratio)

    def pick(self, energy: Float[Tensor, " C"], ratio: float) -> Int[Tensor, " heads"]:
        """The heads that stay, ascending."""
        heads = self.parts.heads
        head_scores = scores.score_heads(energy, self.columns, heads, self.config.score)
        return keep_highest(head_scores, heads - num_heads_to_prune(heads, ratio))

    def channels(self, heads: Int[Tensor, " heads"]) -> Int[Tensor, " kept"]:
        """Channels of the inner state that belong to `heads`."""
        return head_channels(heads, self.parts.head_dim)

    def run(
        self,
        hidden: Float[Tensor, "B S D"],
        heads: Int[Tensor, " heads"],
        mask: Tensor | None,
        rotary: Rotary | None,
        cache: tuple[Any, int] | None,
    ) -> tuple[Float[Tensor, "B S kept"], Int[Tensor, " kept"]]:
        """u of the kept heads, and its channels. With grouped heads K and V are computed whole."""
        rows = self.channels(heads)
        query = rotate(self._heads(self.kept_query(hidden, rows)), rotary)
        if self.parts.grouped:
            key, value = self.parts.key(hidden), self.parts.value(hidden)
        else:
            key, value = self.kept_key(hidden, rows), self.kept_value(hidden, rows)
        key, value = rotate(self._heads(key), rotary), self._heads(value)
        if cache is not None:
            store, layer = cache
            if key.shape[1] == 0:
                # A cache without heads forgets how many tokens it has seen.
                blank = key.new_zeros(len(key), 1, *key.shape[2:])
                store.update(blank, blank, layer)
            else:
                key, value = store.update(key, value, layer)
        key, value = self._shared(key, value, heads)
        return attend(query, key, value, mask), rows

    def _heads(self, states: Float[Tensor, "B S C"]) -> Float[Tensor, "B heads S d"]:
        batch, tokens, channels = states.shape
        head_dim = self.parts.head_dim
        return states.view(batch, tokens, channels // head_dim, head_dim).transpose(1, 2)

    def _shared(self, key: Tensor, value: Tensor, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the group that each query head belongs to."""
        if not self.parts.grouped:
            return key, value
        group = heads // (self.parts.heads // self.parts.key_value_heads)
        return key.index_select(1, group), value.index_select(1, group)


class MLPBlock(Block):
    """MLP of which some channels take part."""

    def __init__(self, parts: LayerParts, config: ProbePruningConfig) -> None:
        super().__init__(parts.down, parts.mlp_norm if parts.norm_first else None, config)
        self.parts = parts
        self.kept_front = [KeptRows(linear) for linear in parts.front]
        if config.legacy_fixed_mlp:
            self.fixed_weight = 1 - config.fixed_weight

    def choose(
        self, residual: Float[Tensor, "B S D"], ratio: float, present: Present
    ) -> Int[Tensor, " channels"]:
        """Probes the block and picks the channels to keep."""
        samples, tokens = self.positions(residual, present)
        picked = samples[:, None], tokens
        probe = self.normalise(residual[picked])
        states = self.parts.mlp_state([linear(probe) for linear in self.parts.front])
        there = None if present is None else present[picked]
        return self.pick(self.energy(states, tokens, there), ratio)

    def pick(self, energy: Float[Tensor, " F"], ratio: float) -> Int[Tensor, " channels"]:
        """The channels that stay, ascending."""
        count = len(energy) - num_channels_to_prune(len(energy), ratio, self.config.multiple)
        return keep_highest(scores.score_channels(energy, self.columns, self.config.score), count)

    def run(
        self, hidden: Float[Tensor, "B S D"], channels: Int[Tensor, " channels"]
    ) -> Float[Tensor, "B S kept"]:
        """u of the kept channels."""
        return self.parts.mlp_state([front(hidden, channels) for front in self.kept_front])
