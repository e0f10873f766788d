"""Residual branches that keep unit scale in both passes (sec. 4.4, app. G).

The split's backward multipliers and the add's forward multipliers belong together: both come from
one `tau`, the ratio of the branch's to the skip's standard deviation.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ritornello.methods.umup.scale import check_positive


def transformer_residual_tau(
    index: int, branches: int, *, residual_mult: float = 1.0, attention_ratio: float = 1.0
) -> float:
    """tau of branch `index` when attention (even) and feed-forward (odd) branches alternate.

    With both multipliers at 1, embedding and all branches together have equal variance, and the
    branches share theirs equally (app. G.2.2).

    Args:
        index: 0 for the first attention, 1 for the first feed-forward branch, ...
        branches: their number, twice the number of layers.
        residual_mult: alpha_res, weight of the branches against the embedding.
        attention_ratio: alpha_res-attn-ratio, weight of attention against feed-forward branches.
    """
    if branches < 2 or branches % 2 or not 0 <= index < branches:
        raise ValueError(
            f"index must be in [0, branches) with branches even, got {index} of {branches}"
        )
    check_positive("residual_mult", residual_mult)
    check_positive("attention_ratio", attention_ratio)
    feed_forward = residual_mult * (2 / (1 + attention_ratio**2)) ** 0.5
    attention = attention_ratio * feed_forward
    earlier_attention, earlier_feed_forward = (index + 1) // 2, index // 2
    variance = (
        branches / 2 + earlier_attention * attention**2 + earlier_feed_forward * feed_forward**2
    )
    return (feed_forward if index % 2 else attention) / variance**0.5


def branch_weights(tau: float) -> tuple[float, float]:
    """(tau, 1) / (1 + tau^2)^1/2: weights of branch and skip, squares summing to one."""
    norm = (1 + tau**2) ** 0.5
    return tau / norm, 1 / norm


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, branch_weight: float, skip_weight: float) -> tuple[Tensor, Tensor]:
        ctx.branch_weight, ctx.skip_weight = branch_weight, skip_weight
        return x.view_as(x), x.view_as(x)

    @staticmethod
    def backward(ctx, branch_grad: Tensor, skip_grad: Tensor) -> tuple[Tensor, None, None]:
        grad = (skip_grad * ctx.skip_weight).add_(branch_grad, alpha=ctx.branch_weight)
        return grad, None, None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, branch: Tensor, skip: Tensor, branch_weight: float, skip_weight: float
    ) -> Tensor:
        return (skip * skip_weight).add_(branch, alpha=branch_weight)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return grad, grad, None, None


def residual_split(
    x: Float[Tensor, "*shape"], tau: float = 1.0
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """(branch, skip), both equal to `x`; their gradients are weighted by `branch_weights`."""
    check_positive("tau", tau)
    return _Split.apply(x, *branch_weights(tau))


def residual_add(
    branch: Float[Tensor, "*shape"], skip: Float[Tensor, "*shape"], tau: float = 1.0
) -> Float[Tensor, "*shape"]:
    """Weighted sum by `branch_weights`, in the forward pass only."""
    check_positive("tau", tau)
    if branch.shape != skip.shape:
        raise ValueError(
            f"branch must have skip's shape {tuple(skip.shape)}, got {tuple(branch.shape)}"
        )
    return _Add.apply(branch, skip, *branch_weights(tau))


def residual_apply(
    fn: Callable[[Tensor], Tensor], x: Float[Tensor, "*shape"], tau: float = 1.0
) -> Float[Tensor, "*shape"]:
    """x plus the branch fn(x), weighted so that `fn` itself runs at unit scale both ways."""
    branch, skip = residual_split(x, tau)
    return residual_add(fn(branch), skip, tau)
