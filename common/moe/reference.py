"""The mixture of experts as a loop over tokens: slow, obvious, what the fast path must equal."""

import torch
from jaxtyping import Float
from torch import Tensor

from ritornello.common.moe.experts import ACTIVATIONS, Experts
from ritornello.common.moe.routing import RoutingState


def mixture(
    experts: Experts, tokens: Float[Tensor, "n d"], state: RoutingState
) -> Float[Tensor, "n d"]:
    """Σ_j score_j · expert_{a_j}(token) for each token, without dropout and capacity."""
    rows = []
    for token, indices, scores in zip(tokens, state.indices, state.scores, strict=True):
        outputs = [
            score * _expert(experts, token, int(expert))
            for expert, score in zip(indices, scores, strict=True)
        ]
        rows.append(torch.stack(outputs).sum(dim=0))
    return torch.stack(rows)


def _expert(experts: Experts, token: Float[Tensor, "d"], k: int) -> Float[Tensor, "d"]:
    hidden = token @ experts.weight_in[k]
    if experts.bias_in is not None:
        hidden = hidden + experts.bias_in[k]
    function = ACTIVATIONS[experts.activation]
    if experts.activation == "swiglu":
        gate, up = hidden.chunk(2)
        hidden = function(gate) * up
    else:
        hidden = function(hidden)
    out = hidden @ experts.weight_out[k]
    return out if experts.bias_out is None else out + experts.bias_out[k]
