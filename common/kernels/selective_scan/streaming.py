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

    Raises:
        ValueError: `state`, `dt`, `B` or `C` does not fit `x` and `A`.
    """
    expected = {
        "state": (state, (*x.shape, A.shape[1])),
        "dt": (dt, tuple(x.shape)),
        "B": (B, (len(x), A.shape[1])),
        "C": (C, (len(x), A.shape[1])),
    }
    for name, (value, shape) in expected.items():
        if value.shape != shape:
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
