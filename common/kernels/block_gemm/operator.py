"""The operator `ritornello::block_scaled_matmul`: dispatch and fake kernel.

It multiplies integers, so it has no gradient.
"""

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from ritornello.common.kernels.block_gemm import cpu, reference
from ritornello.common.kernels.block_gemm.packing import unpack_int4
from ritornello.common.kernels.constant import constant_operator
from ritornello.common.kernels.dispatch import choose_backend, device_obstacle, triton_obstacle


def block_scaled_matmul(
    q: Int8[Tensor, "batch tokens channels"],
    weight: Tensor,
    order: Int[Tensor, "batch channels"],
    group_scale: Float[Tensor, "batch groups"],
    row_scale: Float[Tensor, "batch tokens"],
    weight_scale: Float[Tensor, " out"],
    *,
    group_size: int,
    backend: str | None = None,
) -> Float[Tensor, "batch tokens out"]:
    """Multiplies channel-sorted integer activations by integer weights, scaled block by block.

    y[t,o] = a[t] w[o] * sum over blocks b of s_b * (sum over j in b of q[t,j] W[o, order[j]]):
    the inner sums are exact 32-bit integers, the outer one is float32. The weight stays in its own
    channel order and is sorted while it is read.

    Args:
        q: activations, channels sorted by `order`.
        weight: int8 (out, channels), or uint8 (out, channels / 2) from `pack_int4`.
        order: channel of the weight that belongs to each sorted channel.
        group_scale: s, one for each run of `group_size` sorted channels; the last may be shorter.
        row_scale: a.
        weight_scale: w.
        group_size: channels in a block.
        backend: "triton", "cpu" (8-bit instructions) or "reference"; None lets the environment
            variable RITORNELLO_BACKEND or the device decide.

    Raises:
        ValueError: shapes or dtypes do not fit, or the forced backend cannot run.
    """
    if q.ndim != 3 or q.dtype != torch.int8:
        raise ValueError(
            f"q must be int8 (batch, tokens, channels), got {q.dtype} {tuple(q.shape)}"
        )
    if weight.dtype not in (torch.int8, torch.uint8):
        raise ValueError(f"weight must be int8, or uint8 with packed nibbles, got {weight.dtype}")
    if group_size < 1:
        raise ValueError(f"group_size must be at least 1, got {group_size}")
    batch, tokens, channels = q.shape
    stored = channels if weight.dtype == torch.int8 else channels / 2
    groups = -(-channels // group_size)
    wanted = {
        "weight": (weight.shape, (len(weight), stored)),
        "order": (order.shape, (batch, channels)),
        "group_scale": (group_scale.shape, (batch, groups)),
        "row_scale": (row_scale.shape, (batch, tokens)),
        "weight_scale": (weight_scale.shape, (len(weight),)),
    }
    for name, (given, expected) in wanted.items():
        if tuple(given) != expected:
            raise ValueError(f"{name} must have the shape {expected}, got {tuple(given)}")
    return _operator(q, weight, order, group_scale, row_scale, weight_scale, group_size, backend)


@constant_operator("block_scaled_matmul")
def _operator(
    q: Tensor,
    weight: Tensor,
    order: Tensor,
    group_scale: Tensor,
    row_scale: Tensor,
    weight_scale: Tensor,
    group_size: int,
    backend: str | None,
) -> Tensor:
    available = {
        "triton": triton_obstacle(q.device) or _block_obstacle(group_size, q.shape[2]),
        "cpu": device_obstacle(q.device, "cpu"),
        "reference": None,
    }
    chosen = choose_backend("block_scaled_matmul", backend, available, q.device)
    inputs = (order, group_scale, row_scale, weight_scale, group_size)
    if chosen == "triton":
        from ritornello.common.kernels.block_gemm import triton

        return triton.block_scaled_matmul(q, weight, *inputs)
    integers = unpack_int4(weight) if weight.dtype == torch.uint8 else weight
    return (cpu if chosen == "cpu" else reference).block_scaled_matmul(q, integers, *inputs)


def _block_obstacle(group_size: int, channels: int) -> str | None:
    if group_size >= channels or group_size % 32 == 0:
        return None
    return f"its blocks are multiples of 32 channels, group_size is {group_size}"


@torch.library.register_fake("ritornello::block_scaled_matmul")
def _(q, weight, order, group_scale, row_scale, weight_scale, group_size, backend):
    return q.new_empty(*q.shape[:2], len(weight), dtype=torch.float32)
