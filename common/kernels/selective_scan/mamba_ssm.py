"""The selective scan of the package mamba-ssm, where it is installed with its CUDA kernels."""

import importlib.util

import torch
from jaxtyping import Float
from torch import Tensor

from ritornello.common.kernels.dispatch import device_obstacle


def obstacle(device: torch.device | str) -> str | None:
    """Why this backend cannot run on `device`; None when it can."""
    if (reason := device_obstacle(device, "cuda")) is not None:
        return reason
    if importlib.util.find_spec("selective_scan_cuda") is None:
        return "the package mamba-ssm is not installed with its CUDA scan"
    return None


def scan(
    u: Float[Tensor, "batch channels length"],
    delta: Float[Tensor, "batch channels length"],
    A: Float[Tensor, "channels states"],
    B: Float[Tensor, "batch groups states length"],
    C: Float[Tensor, "batch groups states length"],
    initial_state: Float[Tensor, "batch channels states"] | None,
) -> tuple[Tensor, Tensor]:
    """The same as `reference.scan`, with gradients of its own.

    mamba-ssm starts from zero; what another initial state adds is computed beside it.

    Raises:
        ValueError: fp64, which its kernels do not have.
    """
    from mamba_ssm.ops.selective_scan_interface import (  # type: ignore[reportMissingImports]
        selective_scan_fn,
    )

    if u.dtype != torch.float32:
        raise ValueError("backend='cuda' scans in fp32: u and delta must not be float64")
    arrays = (x.contiguous() for x in (u, delta, A, B, C))
    y, last = selective_scan_fn(*arrays, return_last_state=True)
    if initial_state is None:
        return y, last
    added, left = from_initial_state(delta, A, C, initial_state)
    return y + added, last + left


def from_initial_state(
    delta: Float[Tensor, "batch channels length"],
    A: Float[Tensor, "channels states"],
    C: Float[Tensor, "batch groups states length"],
    initial_state: Float[Tensor, "batch channels states"],
) -> tuple[Float[Tensor, "batch channels length"], Float[Tensor, "batch channels states"]]:
    """What h_0 adds to the outputs and to the last state: the scan is linear in it."""
    decay = torch.exp(delta.cumsum(-1)[:, :, None] * A[..., None])  # (batch, channels, n, length)
    states = decay * initial_state[..., None]
    width = delta.shape[1] // C.shape[1]
    return (states * C.repeat_interleave(width, dim=1)).sum(2), states[..., -1]
