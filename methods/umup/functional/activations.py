"""Unit-scaled operators without weights: activations, softmax, attention, norms, add, dropout.

`mult` is the temperature of the non-linearity, a hyper-parameter of u-muP (table 8, app. B).
"""

import math
from typing import overload

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ritornello.methods.umup.scale import (
    BinaryConstraint,
    Constraint,
    check_positive,
    constrain,
    log_interpolate,
    scale_bwd,
    scale_fwd,
)

EPS = 1e-5
# Standard deviation of relu(N(0, 1)) is the inverse of this: the limit of gelu for large mult.
_RELU_SCALE = math.sqrt(2 / (1 - 1 / math.pi))


def gelu(
    x: Float[Tensor, "*shape"],
    mult: float = 1.0,
    constraint: Constraint | None = "to_output_scale",
    approximate: str = "none",
) -> Float[Tensor, "*shape"]:
    """gelu(mult * x) / mult, scaled between its linear and its relu limit."""
    check_positive("mult", mult)
    alpha = 1 / (1 + 1 / (4 * mult**2))
    out_scale, in_scale = constrain(
        constraint,
        log_interpolate(alpha, 2, _RELU_SCALE),
        grad_input=log_interpolate(alpha, 2, math.sqrt(2)),
    )
    out = F.gelu(scale_bwd(x, in_scale) * mult, approximate=approximate) / mult
    return scale_fwd(out, out_scale)


def silu(
    x: Float[Tensor, "*shape"],
    mult: float = 1.0,
    constraint: Constraint | None = "to_output_scale",
) -> Float[Tensor, "*shape"]:
    """x * sigmoid(mult * x), scaled between its linear and its relu limit."""
    check_positive("mult", mult)
    out_scale, in_scale = constrain(
        constraint,
        log_interpolate(1 / (1 + 1 / (4 * mult**2)), 2, _RELU_SCALE),
        grad_input=log_interpolate(1 / (1 + 1 / mult**2), 2, math.sqrt(2)),
    )
    return scale_fwd(F.silu(scale_bwd(x, in_scale) * mult) / mult, out_scale)


class _SiluGlu(torch.autograd.Function):
    """y = scale * x * gate * sigmoid(mult * gate); `addcmul` folds the scale into each product."""

    @staticmethod
    def forward(ctx, x: Tensor, gate: Tensor, scale: float, mult: float) -> Tensor:
        activated = F.silu(gate if mult == 1 else gate * mult)
        ctx.save_for_backward(x, gate, activated)
        ctx.scale, ctx.mult = scale, mult
        return torch.addcmul(x.new_zeros(1), activated, x, value=scale / mult)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, gate, activated = ctx.saved_tensors
        hot = gate if ctx.mult == 1 else gate * ctx.mult
        if torch.is_grad_enabled():  # second derivatives need it as a function of the gate
            activated = F.silu(hot)
        zero = grad.new_zeros(1)
        grad_x = torch.addcmul(zero, activated, grad, value=ctx.scale / ctx.mult)
        grad_product = torch.addcmul(zero, grad, x, value=ctx.scale)
        return grad_x, _silu_backward(grad_product, hot), None, None


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient of silu at `x`; takes the memory of `grad`."""
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward.grad_input(grad, x, grad_input=grad)
    gate = x.sigmoid()  # the kernel has no derivative of its own
    return grad * gate * (1 + x * (1 - gate))


def silu_glu(
    x: Float[Tensor, "*shape"], gate: Float[Tensor, "*shape"], mult: float = 1.0
) -> Float[Tensor, "*shape"]:
    """x * gate * sigmoid(mult * gate), one multiplier forward and for both gradients."""
    check_positive("mult", mult)
    scale = log_interpolate(1 / (1 + 1 / mult**2), 2, math.sqrt(2))
    return _SiluGlu.apply(x, gate, scale, float(mult))


def softmax(
    x: Float[Tensor, "*shape"],
    dim: int = -1,
    *,
    mult: float = 1.0,
    constraint: Constraint | None = "to_output_scale",
) -> Float[Tensor, "*shape"]:
    """softmax(mult * x) along `dim`, scaled between its uniform and its peaked limit."""
    check_positive("mult", mult)
    size = x.shape[dim]
    alpha = 1 / (1 + 4 / mult**2)
    out_scale, in_scale = constrain(
        constraint,
        log_interpolate(alpha, size, size**0.5),
        grad_input=log_interpolate(alpha, size / mult, (size / mult) ** 0.5),
    )
    return scale_fwd(F.softmax(scale_bwd(x, in_scale) * mult, dim=dim), out_scale)


def attention_scale(
    tokens: int, head_dim: int, *, mult: float = 1.0, is_causal: bool = False
) -> float:
    """Multiplier that gives attention over `tokens` keys unit variance (app. B.2)."""
    effective = math.log(tokens) if is_causal else 1.0
    if effective == 0:  # one causal token attends to itself
        return 1.0
    alpha = 1 / (1 + 4 * head_dim / mult**2)
    return 1 / log_interpolate(alpha, (effective / tokens) ** 0.5, 1.0)


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch queries dim"],
    key: Float[Tensor, "*kv_batch keys dim"],
    value: Float[Tensor, "*kv_batch keys dim"],
    attn_mask: Bool[Tensor, "*#batch queries keys"] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    mult: float = 1.0,
    *,
    scale_tokens: int | None = None,
    scale_as_causal: bool | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "*batch queries dim"]:
    """Attention with logits mult * q.k / dim (not dim^1/2) and unit-variance output.

    Args:
        query: queries.
        key: keys; fewer heads than `query` with `enable_gqa`.
        value: values.
        attn_mask: True where a query may look, as in torch.
        dropout_p: dropout of the attention weights, in [0, 1).
        is_causal: lower-triangular mask.
        mult: temperature of the softmax.
        scale_tokens: length that sets the output multiplier; the number of keys of this call by
            default. Fix it where one model sees several lengths, as in cached generation.
        scale_as_causal: use the causal multiplier; `is_causal` by default. For masks that are
            causal but given as `attn_mask`.
        enable_gqa: key/value heads are shared by groups of query heads.
    """
    check_positive("mult", mult)
    head_dim = query.shape[-1]
    causal = is_causal if scale_as_causal is None else scale_as_causal
    tokens = key.shape[-2] if scale_tokens is None else scale_tokens
    scale = attention_scale(tokens, head_dim, mult=mult, is_causal=causal)
    scale *= (1 - dropout_p) ** 0.5
    # The output and all three gradients share the multiplier, and all are linear in the values:
    # one product there replaces four.
    return F.scaled_dot_product_attention(
        query,
        key,
        value * scale,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=mult / head_dim,
        enable_gqa=enable_gqa,
    )


def _norm_scale(x: Tensor, parameter: Tensor) -> float:
    return (parameter.numel() / max(x.numel(), 1)) ** 0.5


def layer_norm(
    x: Float[Tensor, "*batch dim"],
    weight: Float[Tensor, " dim"] | None = None,
    bias: Float[Tensor, " dim"] | None = None,
    *,
    eps: float = EPS,
) -> Float[Tensor, "*batch dim"]:
    """Layer norm; gradients of gain and bias are multiplied by (dim / numel(x))^1/2."""
    if weight is not None:
        weight = scale_bwd(weight, _norm_scale(x, weight))
    if bias is not None:
        bias = scale_bwd(bias, _norm_scale(x, bias))
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rms_norm(
    x: Float[Tensor, "*batch dim"],
    weight: Float[Tensor, " dim"] | None = None,
    *,
    eps: float = EPS,
) -> Float[Tensor, "*batch dim"]:
    """RMS norm; the gradient of the gain is multiplied by (dim / numel(x))^1/2.

    The mean square is taken in fp32 whatever the dtype of `x`, float64 included.
    """
    if weight is not None:
        weight = scale_bwd(weight, _norm_scale(x, weight))
    if x.dtype != torch.float64:
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    normed = x / (x.float().square().mean(-1, keepdim=True) + eps).sqrt()
    return normed if weight is None else normed * weight


@overload
def add(
    left: Tensor, right: Tensor | float, constraint: BinaryConstraint | None = ...
) -> Tensor: ...
@overload
def add(left: float, right: Tensor, constraint: BinaryConstraint | None = ...) -> Tensor: ...
def add(
    left: Tensor | float,
    right: Tensor | float,
    constraint: BinaryConstraint | None = "to_output_scale",
) -> Tensor | float:
    """left + right times 2^-1/2; the gradient of a broadcast operand, repeats^-1/2.

    A number or one-element tensor shifts and does not scale. In residual branches use
    `residual_apply`, whose multipliers are paired between split and add.
    """
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return left + right
    numel = torch.broadcast_shapes(left.shape, right.shape).numel()
    shifts = left.numel() == 1 or right.numel() == 1
    out_scale, left_scale, right_scale = constrain(
        constraint,
        1.0 if shifts else 2**-0.5,
        left_grad=(max(left.numel(), 1) / max(numel, 1)) ** 0.5,
        right_grad=(max(right.numel(), 1) / max(numel, 1)) ** 0.5,
    )
    return scale_fwd(scale_bwd(left, left_scale) + scale_bwd(right, right_scale), out_scale)


def dropout(
    x: Float[Tensor, "*shape"], p: float = 0.5, training: bool = True, *, scale_eval: bool = False
) -> Float[Tensor, "*shape"]:
    """Dropout with unit variance: the kept values are divided by (1 - p)^1/2.

    Args:
        x: any shape.
        p: probability of dropping, in [0, 1).
        training: drop; otherwise the input is returned.
        scale_eval: multiply by (1 - p)^1/2 outside training too, as the published library does.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p must be in [0, 1), got {p}")
    if not training and not scale_eval:
        return x
    return F.dropout(x, p, training) * (1 - p) ** 0.5
