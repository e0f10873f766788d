"""x W^T + b with the weight laid out once for oneDNN, instead of anew in every call.

For the few rows of a decoding step the usual layout costs as much as the product; for many rows
oneDNN's product alone is faster than the default one on processors with AVX-512.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def can_pack(weight: Tensor) -> bool:
    """Whether the weight is dense fp32 on a CPU whose torch has oneDNN, and not empty."""
    return (
        # subclasses (quantised, sharded) multiply themselves
        type(weight.data) is Tensor
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() > 0
        and torch.backends.mkldnn.is_available()
    )


def can_use_packed(x: Tensor) -> bool:
    """Whether `x` may go through `packed_linear` here: fp32, no autocast, gradients or tracing."""
    return (
        x.dtype == torch.float32
        and x.numel() > 0
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def pack_weight(weight: Float[Tensor, "outputs inputs"], rows: int) -> Tensor:
    """A copy in oneDNN's own layout, for products with about `rows` rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)


def packed_linear(
    x: Float[Tensor, "*rows inputs"], packed: Tensor, bias: Float[Tensor, " outputs"] | None
) -> Float[Tensor, "*rows outputs"]:
    """The linear layer of a weight that `pack_weight` laid out; no gradients."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
