"""How far an arm's kept MLP channels agree with what full-batch probing would keep."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from ritornello.common.runs import Measurement
from ritornello.methods.probe_pruning import PrunedModel, channel_scores
from ritornello.methods.probe_pruning.history import mean_squares
from ritornello.methods.probe_pruning.layer import PrunedLayer
from ritornello.methods.probe_pruning.probe import probe_positions
from ritornello.methods.probe_pruning.selection import keep_highest, num_channels_to_prune

_BINS = 20


class Agreement:
    """Listens to one forward pass; on the same inputs, layer by layer, the whole batch is probed.

    Made before the pass, asked after it.
    """

    def __init__(self, pruned: PrunedModel) -> None:
        self.pruned = pruned
        self.residual: dict[int, Tensor] = {}
        self.past = {
            number: layer.mlp.history.energy.clone()
            for number, layer in pruned.layers.items()
            if layer.mlp.history is not None
        }
        self._hooks = [
            self._norm(layer).register_forward_pre_hook(self._listener(number))
            for number, layer in pruned.layers.items()
        ]

    @staticmethod
    def _norm(layer: PrunedLayer) -> nn.Module:
        return layer.parts.mlp_norm

    def _listener(self, number: int):
        def listen(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            # The probe passes through the same norm, with fewer tokens.
            known = self.residual.get(number)
            if known is None or args[0].numel() >= known.numel():
                self.residual[number] = args[0]

        return listen

    @torch.no_grad()
    def measurements(self, artifacts: Path) -> Iterator[Measurement]:
        """The Jaccard index of every layer; the importance weights of a probe go to a file."""
        for hook in self._hooks:
            hook.remove()
        counts = np.zeros(_BINS)
        for number, layer in self.pruned.layers.items():
            residual = self.residual.pop(number)
            states = self._states(layer, residual)
            mine = self.pruned.last_selection[number][1]
            whole = self._whole_batch_choice(layer, states)
            yield Measurement(
                "jaccard_to_full_batch", jaccard(mine, whole), coordinates={"layer": number}
            )
            if self.pruned.pruning.method == "probe" and number in self.past:
                counts += self._weights(number, residual, states)
        if counts.any():
            np.save(artifacts / "importance_weights.npy", counts / counts.sum())

    def _states(self, layer: PrunedLayer, residual: Tensor) -> Tensor:
        hidden = layer.parts.mlp_norm(residual)
        return layer.parts.mlp_state([front(hidden) for front in layer.parts.front])

    def _whole_batch_choice(self, layer: PrunedLayer, states: Tensor) -> Int[Tensor, " channels"]:
        energy = mean_squares(states).sum(0)
        scores = channel_scores(energy, layer.parts.down.weight)
        config = self.pruned.pruning
        pruned = num_channels_to_prune(len(energy), self.pruned.ratio, config.multiple)
        return keep_highest(scores, len(energy) - pruned)

    def _weights(self, number: int, residual: Tensor, states: Tensor) -> np.ndarray:
        """Histogram of w = p / (p + h), the weight of the probe in the fusion."""
        config = self.pruned.pruning
        samples, tokens = probe_positions(residual, config.probe_ratios, config.order)
        probe = mean_squares(states[samples][:, tokens])
        past = self.past[number].to(probe.device)[tokens]
        weights = probe / (probe + past + 1e-6)
        return np.histogram(weights.cpu().numpy(), bins=_BINS, range=(0, 1))[0]


def jaccard(a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> float:
    """Size of the intersection over that of the union."""
    common = int(torch.isin(a, b).sum())
    return common / (len(a) + len(b) - common)
