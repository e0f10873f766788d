"""The causal depthwise convolution before the scan, in C++ on a CPU, else by torch."""

import os
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ritornello.common.kernels.dispatch import BACKEND_VARIABLE, carries_tangent
from ritornello.common.kernels.selective_scan import native
from ritornello.common.kernels.selective_scan.operator import check_devices

MAX_COMPILED_WIDTH = 8


def causal_conv1d(
    x: Float[Tensor, "batch channels length"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, "channels"] | None = None,
    activation: Literal["silu", "swish"] | None = None,
    initial_state: Float[Tensor, "batch channels width_minus_1"] | None = None,
) -> Float[Tensor, "batch channels length"]:
    """Depthwise convolution over the present and the last width - 1 inputs, as causal-conv1d's.

    Args:
        x: input.
        weight: one filter a channel; the last tap meets the present input.
        bias: one value a channel.
        activation: "silu" (or its other name, "swish") or None.
        initial_state: the width - 1 inputs before the first one; zeros if None.

    Raises:
        ValueError: shapes or devices that do not fit, or an unknown activation.
    """
    channels, width = weight.shape
    if x.ndim != 3 or x.shape[1] != channels:
        raise ValueError(f"x must be (batch, channels={channels}, length), got {tuple(x.shape)}")
    if activation not in ("silu", "swish", None):
        raise ValueError(f"activation must be 'silu', 'swish' or None, got {activation!r}")
    check_devices(x, {"weight": weight, "bias": bias, "initial_state": initial_state})
    silu = activation is not None
    history = (len(x), channels, width - 1)
    if initial_state is not None and initial_state.shape != history:
        raise ValueError(f"initial_state must be {history}, got {tuple(initial_state.shape)}")
    if bias is None:
        bias = weight.new_zeros(channels)
    if not x.numel():
        return x
    weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    if initial_state is None and _compiled(x, weight, bias):
        return _convolution(x, weight, bias, silu)
    if initial_state is None:
        padded = F.pad(x, (width - 1, 0))
    else:
        padded = torch.cat([initial_state.to(x.dtype), x], dim=-1)
    y = F.conv1d(padded, weight[:, None], bias, groups=channels)
    return F.silu(y) if silu else y


def _compiled(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether the C++ convolution runs; other backends of the scan bring torch's with them."""
    if torch.compiler.is_compiling():  # torch's own convolution fuses into the graph
        return False
    if carries_tangent(x, weight, bias):
        return False
    wanted = os.environ.get(BACKEND_VARIABLE, "compiled") in ("", "compiled")
    fits = x.dtype in (torch.float32, torch.float64) and weight.shape[1] <= MAX_COMPILED_WIDTH
    return wanted and fits and x.device.type == "cpu" and native.obstacle() is None


@torch.library.custom_op("ritornello::causal_conv1d", mutates_args=())
def _convolution(x: Tensor, weight: Tensor, bias: Tensor, silu: bool) -> Tensor:
    x, y = x.contiguous(), x.new_empty(x.shape)
    sizes = *x.shape, weight.shape[1], int(silu), torch.get_num_threads()
    native.call("conv_forward", sizes, (x, weight.contiguous(), bias.contiguous(), y))
    return y


@_convolution.register_fake
def _(x, weight, bias, silu):
    return x.new_empty(x.shape)


@torch.library.custom_op("ritornello::causal_conv1d_backward", mutates_args=())
def _convolution_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    inputs = tuple(array.contiguous() for array in (x, weight, bias, dy))
    outputs = x.new_empty(x.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)
    sizes = *x.shape, weight.shape[1], int(silu), torch.get_num_threads()
    native.call("conv_backward", sizes, (*inputs, *outputs))
    return outputs


@_convolution_backward.register_fake
def _(dy, x, weight, bias, silu):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _setup_context(ctx, inputs, output) -> None:
    *arrays, ctx.silu = inputs
    ctx.save_for_backward(*arrays)


def _backward(ctx, dy):
    return *_convolution_backward(dy, *ctx.saved_tensors, ctx.silu), None


_convolution.register_autograd(_backward, setup_context=_setup_context)
