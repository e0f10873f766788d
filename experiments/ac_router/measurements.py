"""What the trained parts measure alike: the loss curve, and the routing of each layer."""

from collections.abc import Iterator, Sequence

import numpy as np

from ritornello.common.moe import RoutingState
from ritornello.common.moe.statistics import load_entropy, stability
from ritornello.common.runs import CellContext, Measurement


def curve(losses: list[float], context: CellContext, points: int = 10) -> Iterator[Measurement]:
    """The training loss, averaged over `points` equal stretches of the run."""
    length = max(len(losses) // points, 1)
    for end in range(length, len(losses) + 1, length):
        mean = float(np.mean(losses[end - length : end]))
        context.log(end, train_loss=mean)
        yield Measurement("train_loss", mean, coordinates={"step": end})


def routing(states: Sequence[RoutingState], num_experts: int) -> Iterator[Measurement]:
    """Evenness of each layer's load, token pairs that flip between layers, spread of the weights.

    Args:
        states: of the MoE layers in order, all for the same tokens.
        num_experts: of every layer.
    """
    for number, state in enumerate(states, start=1):
        place = {"layer": number}
        entropy = float(load_entropy(state.indices, num_experts))
        yield Measurement("load_entropy", entropy, coordinates=place)
        if number > 1:
            pair = (s.indices[..., 0].flatten() for s in (states[number - 2], state))
            yield Measurement("stability", stability(*pair), coordinates=place)
        if state.weights is not None:  # how far the gate is from one without weights
            spread = float(state.weights.std())
            yield Measurement("weight_spread", spread, coordinates=place)
