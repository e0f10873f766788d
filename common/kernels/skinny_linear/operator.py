"""A product for few rows in C++, built at first use; bits equal oneDNN's on AVX-512 processors."""

import ctypes
import functools

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ritornello.common.kernels.compiled import build_obstacle, load_library

_SOURCE = ("ritornello.common.kernels.skinny_linear", "skinny.cpp")
_ALIGNED = 64 // 4  # floats


def obstacle() -> str | None:
    """Why the compiled product is not to be had; None when it is."""
    return build_obstacle(*_SOURCE)


def pack_panels(weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, "panels inputs width"]:
    """A copy of a float32 weight on the CPU as panels of outputs, zeros after the last output."""
    width = _library().panel_width()
    panels = F.pad(weight.detach(), (0, 0, 0, -len(weight) % width)).unflatten(0, (-1, width)).mT
    memory = weight.new_empty(panels.numel() + _ALIGNED, requires_grad=False)
    start = -(memory.data_ptr() // 4) % _ALIGNED
    return memory[start : start + panels.numel()].view(panels.shape).copy_(panels)


def skinny_linear(
    x: Float[Tensor, "*rows inputs"],
    panels: Float[Tensor, "panels inputs width"],
    bias: Float[Tensor, " outputs"] | None,
    *,
    outputs: int,
) -> Float[Tensor, "*rows outputs"]:
    """x W^T + b on one thread, without gradients; `panels` is W as `pack_panels` lays it out.

    Raises:
        ValueError: x is not float32 on the CPU, or has another number of inputs than W.
    """
    if x.dtype != torch.float32 or x.is_cuda or x.shape[-1] != panels.shape[1]:
        raise ValueError(
            f"x must be float32 on the CPU with {panels.shape[1]} inputs, "
            f"got {x.dtype} on {x.device} with {x.shape[-1]}"
        )
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-1], outputs)
    rows = x[..., 0].numel()
    _library().skinny_linear(
        x.data_ptr(), panels.data_ptr(), out.data_ptr(), rows, x.shape[-1], outputs
    )
    return out if bias is None else out.add_(bias)


@functools.cache
def _library() -> ctypes.CDLL:
    library = load_library(*_SOURCE)
    library.panel_width.restype = ctypes.c_int64
    library.skinny_linear.restype = None
    library.skinny_linear.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3
    return library
