"""The operators `ritornello::sorted_channel_scale`, `smooth_quantize`, `rotate_smooth_quantize`.

Rounding has no useful derivative and a maximum over tokens is used as a constant, so neither has
a gradient: a caller that trains through a quantiser adds its own straight-through estimator.
"""

from types import ModuleType

import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor

from ritornello.common.kernels.constant import constant_operator
from ritornello.common.kernels.dispatch import choose_backend, device_obstacle, triton_obstacle
from ritornello.common.kernels.hadamard import hadamard_factors
from ritornello.common.kernels.quantize import cpu, reference


def sorted_channel_scale(
    x: Float[Tensor, "batch tokens channels"],
    group_size: int,
    keep: Bool[Tensor, "batch tokens"] | None = None,
    *,
    normalize_tokens: bool = False,
    smallest: float = 0.0,
    backend: str | None = None,
) -> tuple[Int[Tensor, "batch channels"], Float[Tensor, "batch groups"]]:
    """Channels by falling magnitude over the tokens of a sequence, and the largest of each group.

    Args:
        x: activations.
        group_size: sorted channels that share a scale; the last run may be shorter.
        keep: False for tokens (padding) that must not count.
        normalize_tokens: divide every token by its own largest magnitude first.
        smallest: magnitudes are raised to it.
        backend: "triton", "cpu" (C++, built at first use) or "reference"; None lets the
            environment variable RITORNELLO_BACKEND or the device decide.

    Returns:
        (order, group_scale): places in `x` of the sorted channels, of equal ones the first first,
        and float32 scales.

    Raises:
        ValueError: shapes or values do not fit, or the forced backend cannot run.
    """
    _check_activations(x)
    _check_group_size(group_size)
    if keep is not None and keep.shape != x.shape[:2]:
        raise ValueError(f"keep must have the shape {tuple(x.shape[:2])}, got {tuple(keep.shape)}")
    return _sorted_channel_scale(x, keep, group_size, normalize_tokens, smallest, backend)


def smooth_quantize(
    x: Float[Tensor, "batch tokens channels"],
    order: Int[Tensor, "batch channels"],
    group_scale: Float[Tensor, "batch groups"],
    *,
    group_size: int,
    bits: int = 4,
    clip: float = 1.0,
    backend: str | None = None,
) -> tuple[Int8[Tensor, "batch tokens channels"], Float[Tensor, "batch tokens"]]:
    """Symmetric integers of the smoothed, channel-sorted activations, one scale a token.

    q[t, j] = round(x[t, order[j]] / group_scale[j // group_size] / a[t]) with
    a[t] = clip * (largest smoothed magnitude of token t) / (2^(bits-1) - 1), 1 for a zero token;
    ties go to the even level.

    Args:
        x: activations.
        order: place in `x` of each sorted channel.
        group_scale: positive scale of each run of `group_size` sorted channels; the last run may be
            shorter.
        group_size: channels that share a scale.
        bits: 2 to 8.
        clip: fraction of the largest magnitude that is represented.
        backend: see `sorted_channel_scale`.

    Returns:
        (q, a), q in the sorted order.

    Raises:
        ValueError: shapes or values do not fit, or the forced backend cannot run.
    """
    _check(x, order, group_scale, group_size, bits)
    return _smooth_quantize(x, order, group_scale, group_size, 2 ** (bits - 1) - 1, clip, backend)


def rotate_smooth_quantize(
    x: Float[Tensor, "batch tokens channels"],
    order: Int[Tensor, "batch channels"],
    group_scale: Float[Tensor, "batch groups"],
    *,
    group_size: int,
    bits: int = 4,
    clip: float = 1.0,
    backend: str | None = None,
) -> tuple[Int8[Tensor, "batch tokens channels"], Float[Tensor, "batch tokens"]]:
    """`smooth_quantize` of x H / sqrt(channels): on a GPU turned and rounded in one pass over x.

    H is `hadamard_matrix(channels)`; the turned values are float32 whatever `x` is. Arguments and
    errors otherwise as in `smooth_quantize`, where `order` and `group_scale` belong to x H.

    Raises:
        ValueError: as there, or there is no Hadamard matrix of this order.
    """
    _check(x, order, group_scale, group_size, bits)
    hadamard_factors(x.shape[2])
    levels = 2 ** (bits - 1) - 1
    return _rotate_smooth_quantize(x, order, group_scale, group_size, levels, clip, backend)


def _check(x: Tensor, order: Tensor, group_scale: Tensor, group_size: int, bits: int) -> None:
    _check_activations(x)
    batch, _, channels = x.shape
    if not 2 <= bits <= 8:
        raise ValueError(f"bits must be in 2..8, got {bits}")
    _check_group_size(group_size)
    groups = -(-channels // group_size)
    if order.shape != (batch, channels) or group_scale.shape != (batch, groups):
        raise ValueError(
            f"order and group_scale must have the shapes {(batch, channels)} and "
            f"{(batch, groups)}, got {tuple(order.shape)} and {tuple(group_scale.shape)}"
        )


def _check_activations(x: Tensor) -> None:
    if x.ndim != 3 or not x.is_floating_point() or 0 in x.shape:
        raise ValueError(
            "x must be floating point, not empty, (batch, tokens, channels); "
            f"got {x.dtype} {tuple(x.shape)}"
        )


def _check_group_size(group_size: int) -> None:
    if group_size < 1:
        raise ValueError(f"group_size must be at least 1, got {group_size}")


def _implementation(operator: str, backend: str | None, device: torch.device) -> ModuleType:
    available = {
        "triton": triton_obstacle(device),
        "cpu": device_obstacle(device, "cpu") or cpu.obstacle(),
        "reference": None,
    }
    chosen = choose_backend(operator, backend, available, device)
    if chosen == "triton":
        from ritornello.common.kernels.quantize import triton

        return triton
    return cpu if chosen == "cpu" else reference


@constant_operator("sorted_channel_scale")
def _sorted_channel_scale(
    x: Tensor,
    keep: Tensor | None,
    group_size: int,
    normalize_tokens: bool,
    smallest: float,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    chosen = _implementation("sorted_channel_scale", backend, x.device)
    return chosen.sorted_channel_scale(x, keep, group_size, normalize_tokens, smallest)


@torch.library.register_fake("ritornello::sorted_channel_scale")
def _(x, keep, group_size, normalize_tokens, smallest, backend):
    batch, _, channels = x.shape
    groups = -(-channels // group_size)
    return (
        x.new_empty(batch, channels, dtype=torch.long),
        x.new_empty(batch, groups, dtype=torch.float32),
    )


@constant_operator("smooth_quantize")
def _smooth_quantize(
    x: Tensor,
    order: Tensor,
    group_scale: Tensor,
    group_size: int,
    levels: int,
    clip: float,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    chosen = _implementation("smooth_quantize", backend, x.device)
    return chosen.smooth_quantize(x, order, group_scale, group_size, levels, clip)


@constant_operator("rotate_smooth_quantize")
def _rotate_smooth_quantize(
    x: Tensor,
    order: Tensor,
    group_scale: Tensor,
    group_size: int,
    levels: int,
    clip: float,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    chosen = _implementation("rotate_smooth_quantize", backend, x.device)
    return chosen.rotate_smooth_quantize(x, order, group_scale, group_size, levels, clip)


@torch.library.register_fake("ritornello::rotate_smooth_quantize")
@torch.library.register_fake("ritornello::smooth_quantize")
def _(x, order, group_scale, group_size, levels, clip, backend):
    return x.new_empty(x.shape, dtype=torch.int8), x.new_empty(x.shape[:2], dtype=torch.float32)
