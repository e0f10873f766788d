"""One step of the selective scan."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def selective_state_update(
    state: Float[Tensor, "batch channels states"],
    x: Float[Tensor, "batch channels"],
    dt: Float[Tensor, "batch channels"],
    A: Float[Tensor, "channels states"],
    B: Float[Tensor, "batch states"],
    C: Float[Tensor, "batch states"],
    D: Float[Tensor, "channels"] | None = None,
    z: Float[Tensor, "batch channels"] | None = None,
    dt_bias: Float[Tensor, "channels"] | None = None,
    dt_softplus: bool = False,
) -> Float[Tensor, "batch channels"]:
    """One time step of `selective_scan`; `state` is updated in place.

    Args:
        state: h before the step, fp32 or fp64; h after it when the call returns.
        x: input of this step.
        dt: step sizes.
        A: real decay rates.
        B: input weights of this step.
        C: output weights of this step.
        D: skip connection.
        z: gate.
        dt_bias: added to `dt`.
        dt_softplus: whether the steps go through softplus.

    Returns:
        y in the dtype of `x`.

    Raises:
        ValueError: an argument does not fit `x` and `A`.
    """
    if x.ndim != 2 or A.ndim != 2 or len(A) != x.shape[1]:
        raise ValueError(
            "x must be (batch, channels) and A (channels, states), "
            f"got {tuple(x.shape)} and {tuple(A.shape)}"
        )
    (batch, channels), states = x.shape, A.shape[1]
    expected = {
        "state": (state, (batch, channels, states)),
        "dt": (dt, (batch, channels)),
        "B": (B, (batch, states)),
        "C": (C, (batch, states)),
        "D": (D, (channels,)),
        "z": (z, (batch, channels)),
        "dt_bias": (dt_bias, (channels,)),
    }
    for name, (value, shape) in expected.items():
        if value is not None and value.shape != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")
    step = dt.to(state.dtype)
    if dt_bias is not None:
        step = step + dt_bias
    if dt_softplus:
        step = F.softplus(step)
    decay = torch.exp(step[..., None] * A)
    state.copy_(decay * state + (step * x)[..., None] * B[:, None])
    y = (state * C[:, None]).sum(-1)
    if D is not None:
        y = y + D * x
    if z is not None:
        y = y * F.silu(z)
    return y.to(x.dtype)
