"""Selective scan in C++ (scan.cpp), built at first use: a block's states stay in the cache."""

import ctypes

import torch
from torch import Tensor

from ritornello.common.kernels.compiled import build_obstacle, load_library

SOURCE = (__package__, "scan.cpp")
CHANNELS_PER_TASK = 32  # as in scan.cpp: the partial sums it writes


def obstacle() -> str | None:
    """Why this backend cannot run here; None when it can."""
    return build_obstacle(*SOURCE)


def forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as `cpu.forward`."""
    length, states = u.shape[-1], A.shape[1]
    starts = u.new_empty(*u.shape[:2], -(-length // block), states)
    y, last = torch.empty_like(u), torch.empty_like(initial_state)
    packed = A, B.mT.contiguous(), C.mT.contiguous()
    _call("forward", (u, delta, *packed, starts, initial_state, y, last), B.shape[1], block, states)
    return y, last, starts


def backward(
    dy: Tensor,
    dlast: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    starts: Tensor,
    block: int,
) -> tuple[Tensor, ...]:
    """The same as `cpu.backward`."""
    (batch, channels, length), groups, states = u.shape, B.shape[1], A.shape[1]
    packed = A, B.mT.contiguous(), C.mT.contiguous()
    slices = -(-(channels // groups) // CHANNELS_PER_TASK)
    du, ddelta, dinitial = torch.empty_like(u), torch.empty_like(u), torch.empty_like(dlast)
    dA = u.new_empty(batch, channels, states)
    dB, dC = u.new_empty(2, batch, groups, slices, length, states)
    outputs = du, ddelta, dA, dB, dC, dinitial
    inputs = u, delta, *packed, starts, dy, dlast
    _call("backward", (*inputs, *outputs), groups, block, states)
    dB, dC = (x.sum(2).mT.contiguous() for x in (dB, dC))
    return du, ddelta, dA.sum(0), dB, dC, dinitial


def _call(direction: str, arrays: tuple[Tensor, ...], groups: int, block: int, states: int) -> None:
    batch, channels, length = arrays[0].shape
    sizes = batch, channels, groups, length, states, block, torch.get_num_threads()
    call(f"scan_{direction}", sizes, arrays)


def call(name: str, sizes: tuple[int, ...], arrays: tuple[Tensor, ...]) -> None:
    """Calls `<name>_float` or `<name>_double` of scan.cpp on contiguous arrays of one dtype."""
    kind = "double" if arrays[0].dtype == torch.float64 else "float"
    function = getattr(load_library(*SOURCE), f"{name}_{kind}")
    function.restype = None
    pointers = [array.data_ptr() for array in arrays]
    function((ctypes.c_int64 * len(sizes))(*sizes), (ctypes.c_void_p * len(pointers))(*pointers))
