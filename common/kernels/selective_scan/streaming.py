"""One step of the selective scan, and the causal convolution that goes before it."""

from typing import Literal

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


def causal_conv1d(
    x: Float[Tensor, "batch channels length"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, "channels"] | None = None,
    activation: Literal["silu"] | None = None,
    initial_state: Float[Tensor, "batch channels width_minus_1"] | None = None,
) -> Float[Tensor, "batch channels length"]:
    """Depthwise convolution over the present and the last width - 1 inputs, as causal-conv1d's.

    Args:
        x: input.
        weight: one filter a channel; the last tap meets the present input.
        bias: one value a channel.
        activation: "silu" or None.
        initial_state: the width - 1 inputs before the first one; zeros if None.

    Raises:
        ValueError: shapes that do not fit or an unknown activation.
    """
    channels, width = weight.shape
    if x.ndim != 3 or x.shape[1] != channels:
        raise ValueError(f"x must be (batch, channels={channels}, length), got {tuple(x.shape)}")
    if activation not in ("silu", None):
        raise ValueError(f"activation must be 'silu' or None, got {activation!r}")
    if initial_state is None:
        padded = F.pad(x, (width - 1, 0))
    elif initial_state.shape != (len(x), channels, width - 1):
        raise ValueError(
            f"initial_state must be ({len(x)}, {channels}, {width - 1}), "
            f"got {tuple(initial_state.shape)}"
        )
    else:
        padded = torch.cat([initial_state.to(x.dtype), x], dim=-1)
    y = F.conv1d(padded, weight[:, None].to(x.dtype), bias, groups=channels)
    return F.silu(y) if activation == "silu" else y
