"""The public selective scan: checks, choice of backend, and the operator known to torch.library."""

import math
from types import ModuleType
from typing import Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ritornello.common.kernels.dispatch import (
    choose_backend,
    device_obstacle,
    refuse_tangents,
    triton_obstacle,
)
from ritornello.common.kernels.selective_scan import cpu, mamba_ssm, native, reference

Backend = Literal["auto", "compiled", "triton", "cuda", "blocked", "sequential", "reference"]
BLOCK = 16


@overload
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = ...,
    z: Tensor | None = ...,
    delta_bias: Tensor | None = ...,
    delta_softplus: bool = ...,
    return_last_state: Literal[False] = ...,
    initial_state: Tensor | None = ...,
    backend: Backend = ...,
) -> Tensor: ...
@overload
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = ...,
    z: Tensor | None = ...,
    delta_bias: Tensor | None = ...,
    delta_softplus: bool = ...,
    *,
    return_last_state: Literal[True],
    initial_state: Tensor | None = ...,
    backend: Backend = ...,
) -> tuple[Tensor, Tensor]: ...
def selective_scan(
    u: Float[Tensor, "batch channels length"],
    delta: Float[Tensor, "batch channels length"],
    A: Float[Tensor, "channels states"],
    B: Float[Tensor, "..."],
    C: Float[Tensor, "..."],
    D: Float[Tensor, "channels"] | None = None,
    z: Float[Tensor, "batch channels length"] | None = None,
    delta_bias: Float[Tensor, "channels"] | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    initial_state: Float[Tensor, "batch channels states"] | None = None,
    backend: Backend = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Mamba's selective scan, with the arguments, layouts and results of mamba-ssm.

    h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t,  y_t = <h_t, C_t> + D u_t,  y = y silu(z),
    where dt = delta + delta_bias, through softplus if asked for. Arithmetic is in fp32, in fp64
    when `u` or `delta` is fp64. Time grows linearly with the length; the backward keeps one state
    in 16 steps ("compiled", "blocked", "triton").

    Args:
        u: input, (batch, channels, length).
        delta: step sizes, shape of `u`.
        A: real decay rates, negative for stability, (channels, states).
        B: (batch, states, length), (batch, groups, states, length), or (channels, states) for a
            matrix that does not depend on the input; channel d reads group d // (channels/groups).
        C: as `B`, in the same layout or another.
        D: skip connection, (channels,).
        z: gate, shape of `u`.
        delta_bias: added to `delta`, (channels,).
        delta_softplus: whether the steps go through softplus.
        return_last_state: also return h after the last step, (batch, channels, states).
        initial_state: h before the first step; zeros if None. A sequence can be scanned in pieces.
        backend: "compiled" (C++ for a CPU, built at first use), "blocked" and "sequential" (plain
            PyTorch; all steps are one block in the latter), "triton", "cuda" (mamba-ssm's kernels,
            if that is installed), "reference" (a loop), or "auto": RITORNELLO_BACKEND if set, else
            the first of ours that runs on the input's device.

    Returns:
        y in the dtype of `u`, with the last state (fp32 or fp64) if asked for.

    Raises:
        ValueError: shapes or devices that do not fit, integer `u`, complex `A`, an unknown or
            unusable backend.
        RuntimeError: forward-mode derivatives, which only "reference" has.
    """
    _check(u, delta, A, B, C, {"D": D, "delta_bias": delta_bias}, z, initial_state)
    math_dtype = torch.float64 if torch.float64 in (u.dtype, delta.dtype) else torch.float32
    values, steps, rates = u.to(math_dtype), delta.to(math_dtype), A.to(math_dtype)
    if delta_bias is not None:
        steps = steps + delta_bias.to(math_dtype)[:, None]
    if delta_softplus:
        steps = F.softplus(steps)
    given = None if initial_state is None else initial_state.to(math_dtype)
    state = values.new_zeros(*u.shape[:2], A.shape[1]) if given is None else given
    if u.numel() == 0:
        y, last = values, state.clone()
    else:
        chosen = _choose(backend, u.device.type)
        inputs, outputs = _same_groups(*(_grouped(x.to(math_dtype), u) for x in (B, C)))
        if chosen == "reference":
            y, last = reference.scan(values, steps, rates, inputs, outputs, state)
        elif chosen == "cuda":
            y, last = mamba_ssm.scan(values, steps, rates, inputs, outputs, given)
        else:
            refuse_tangents(
                f"selective_scan with backend={chosen!r} ('reference' has one)",
                *(values, steps, rates, inputs, outputs, state),
            )
            y, last, _ = _scan(values, steps, rates, inputs, outputs, state, chosen)
    if D is not None:
        y = y + D.to(math_dtype)[:, None] * values
    if z is not None:
        y = y * F.silu(z.to(math_dtype))
    y = y.to(u.dtype)
    return (y, last) if return_last_state else y


def check_devices(x: Tensor, others: dict[str, Tensor | None]) -> None:
    """Raises ValueError unless the others lie where `x` does: kernels read their addresses."""
    for name, value in others.items():
        if value is not None and value.device != x.device:
            raise ValueError(f"{name} must be on the input's {x.device}, got {value.device}")


def _grouped(matrix: Tensor, u: Tensor) -> Tensor:
    """Any accepted layout of B or C as (batch, groups, states, length)."""
    if matrix.ndim == 2:
        return matrix[None, :, :, None].expand(len(u), -1, -1, u.shape[-1])
    return matrix[:, None] if matrix.ndim == 3 else matrix


def _same_groups(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both matrices with as many groups as each can be repeated to."""
    groups = math.lcm(first.shape[1], second.shape[1])
    if first.shape[1] < groups:
        first = first.repeat_interleave(groups // first.shape[1], dim=1)
    if second.shape[1] < groups:
        second = second.repeat_interleave(groups // second.shape[1], dim=1)
    return first, second


def _choose(backend: str, device: str) -> str:
    compiled = device_obstacle(device, "cpu") or native.obstacle()
    ours = {"triton": triton_obstacle(device), "compiled": compiled}
    if device != "cuda":  # Triton comes last on a CPU: an interpreter
        ours = {"compiled": compiled, "blocked": None} | ours
    packaged = {"cuda": mamba_ssm.obstacle(device)}
    available = ours | packaged | {"blocked": None, "sequential": None, "reference": None}
    requested = None if backend == "auto" else backend
    return choose_backend("selective_scan", requested, available, device)


# What torch.compiler.assume_constant_result sets; the decorator would import the whole compiler.
_choose._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _check(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    per_channel: dict[str, Tensor | None],
    z: Tensor | None,
    initial_state: Tensor | None,
) -> None:
    if u.ndim != 3:
        raise ValueError(f"u must be (batch, channels, length), got shape {tuple(u.shape)}")
    if not u.is_floating_point():
        raise ValueError(f"u must be floating point, got {u.dtype}")
    batch, channels, length = u.shape
    if A.ndim != 2 or len(A) != channels:
        raise ValueError(f"A must be (channels={channels}, states), got shape {tuple(A.shape)}")
    if A.is_complex() or not A.is_floating_point():
        raise ValueError(f"A must be real and floating point, got {A.dtype}")
    states = A.shape[1]
    shapes = {name: (value, (channels,)) for name, value in per_channel.items()}
    shapes |= {"delta": (delta, (batch, channels, length)), "z": (z, (batch, channels, length))}
    shapes["initial_state"] = (initial_state, (batch, channels, states))
    check_devices(u, {name: x for name, (x, _) in shapes.items()} | {"A": A, "B": B, "C": C})
    for name, (value, expected) in shapes.items():
        if value is not None and value.shape != expected:
            raise ValueError(f"{name} must have shape {expected}, got {tuple(value.shape)}")
    for name, matrix in {"B": B, "C": C}.items():
        groups = matrix.shape[1] if matrix.ndim == 4 else 1
        allowed = {
            2: (channels, states),
            3: (batch, states, length),
            4: (batch, groups, states, length),
        }
        if matrix.shape != allowed.get(matrix.ndim) or groups == 0 or channels % groups:
            raise ValueError(
                f"{name} must be {allowed[2]}, {allowed[3]} or (batch={batch}, groups dividing "
                f"{channels}, {states}, {length}), got shape {tuple(matrix.shape)}"
            )


def _implementation(backend: str, length: int) -> tuple[ModuleType, int]:
    """The module that runs a backend, and its block length."""
    if backend == "triton":
        from ritornello.common.kernels.selective_scan import triton

        return triton, BLOCK
    if backend == "compiled":
        return native, BLOCK
    return cpu, length if backend == "sequential" else BLOCK


@torch.library.custom_op("ritornello::selective_scan", mutates_args=())
def _scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    module, block = _implementation(backend, u.shape[-1])
    arrays = [x.contiguous() for x in (u, delta, A, B, C, initial_state)]
    return module.forward(*arrays, block)


@_scan.register_fake
def _(u, delta, A, B, C, initial_state, backend):
    length = u.shape[-1]
    blocks = 1 if backend == "sequential" else (length + BLOCK - 1) // BLOCK
    starts = u.new_empty(u.shape[0], u.shape[1], blocks, A.shape[1])
    return u.new_empty(u.shape), u.new_empty(initial_state.shape), starts


@torch.library.custom_op("ritornello::selective_scan_backward", mutates_args=())
def _scan_backward(
    dy: Tensor,
    dlast: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    starts: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    module, block = _implementation(backend, u.shape[-1])
    arrays = [x.contiguous() for x in (dy, dlast, u, delta, A, B, C, starts)]
    return module.backward(*arrays, block)


@_scan_backward.register_fake
def _(dy, dlast, u, delta, A, B, C, starts, backend):
    shapes = u.shape, delta.shape, A.shape, B.shape, C.shape, dlast.shape
    return tuple(u.new_empty(shape) for shape in shapes)


def _setup_context(ctx, inputs, output) -> None:
    *arrays, _, ctx.backend = inputs
    ctx.save_for_backward(*arrays, output[2])


def _backward(ctx, dy, dlast, _):
    return *_scan_backward(dy, dlast, *ctx.saved_tensors, ctx.backend), None


_scan.register_autograd(_backward, setup_context=_setup_context)
