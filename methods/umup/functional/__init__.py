"""The unit-scaled operators, to be imported as `functional as U` (table 8 of the paper)."""

from ritornello.methods.umup.functional.activations import (
    add,
    dropout,
    gelu,
    layer_norm,
    rms_norm,
    scaled_dot_product_attention,
    silu,
    silu_glu,
    softmax,
)
from ritornello.methods.umup.functional.losses import cross_entropy, mse_loss
from ritornello.methods.umup.functional.projections import (
    conv1d,
    embedding,
    linear,
    linear_readout,
    matmul,
)
from ritornello.methods.umup.functional.residual import (
    residual_add,
    residual_apply,
    residual_split,
    transformer_residual_tau,
)
from ritornello.methods.umup.scale import scale_bwd, scale_fwd

__all__ = [
    "add",
    "conv1d",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "linear_readout",
    "matmul",
    "mse_loss",
    "residual_add",
    "residual_apply",
    "residual_split",
    "rms_norm",
    "scale_bwd",
    "scale_fwd",
    "scaled_dot_product_attention",
    "silu",
    "silu_glu",
    "softmax",
    "transformer_residual_tau",
]
