"""The selective scan as one loop over time: the oracle of every faster backend."""

import torch
from jaxtyping import Float
from torch import Tensor


def scan(
    u: Float[Tensor, "batch channels length"],
    delta: Float[Tensor, "batch channels length"],
    A: Float[Tensor, "channels states"],
    B: Float[Tensor, "batch groups states length"],
    C: Float[Tensor, "batch groups states length"],
    initial_state: Float[Tensor, "batch channels states"],
) -> tuple[Float[Tensor, "batch channels length"], Float[Tensor, "batch channels states"]]:
    """h_t = exp(delta_t A) h_{t-1} + delta_t u_t B_t and y_t = <h_t, C_t>; gradients by autograd.

    Channel d reads group d // (channels / groups) of B and C.

    Returns:
        y, and the state after the last step.
    """
    width = u.shape[1] // B.shape[1]
    state, outputs = initial_state, []
    for t in range(u.shape[-1]):
        B_t = B[..., t].repeat_interleave(width, dim=1)
        C_t = C[..., t].repeat_interleave(width, dim=1)
        step = delta[..., t, None]
        state = torch.exp(step * A) * state + step * u[..., t, None] * B_t
        outputs.append((state * C_t).sum(-1))
    return torch.stack(outputs, dim=-1), state
