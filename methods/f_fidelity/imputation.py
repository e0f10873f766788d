"""Noisy linear imputation: what is removed is filled from what is kept around it (ROAD)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

# Direct neighbours weigh 1/6, diagonal ones 1/12.
_WEIGHTS = ((1 / 12, 1 / 6, 1 / 12), (1 / 6, 0.0, 1 / 6), (1 / 12, 1 / 6, 1 / 12))


def impute_linear(
    images: Float[Tensor, "batch channels height width"],
    keep: Bool[Tensor, "batch height width"],
    *,
    noise: float = 0.01,
    tolerance: float = 1e-4,
    max_steps: int = 500,
) -> Float[Tensor, "batch channels height width"]:
    """Makes every removed pixel the weighted mean of its eight neighbours, removed ones included.

    That linear system (Rong et al., ICML 2022) is symmetric once each row is multiplied by the sum
    of its weights inside the picture, so all images are solved together by conjugate gradients.
    The noise is a fixed field: the same inputs give the same result. Nothing kept: zeros.

    Args:
        images: pictures; values of removed pixels are not looked at.
        keep: False where a pixel was removed.
        noise: standard deviation of what is added to the filled pixels.
        tolerance: relative residual at which the solver stops.
        max_steps: at most so many iterations.
    """
    kernel = torch.tensor(_WEIGHTS, device=images.device)[None, None]
    known = keep[:, None].float()
    hole = 1 - known
    inside = F.conv2d(torch.ones_like(known[:1]), kernel, padding=1)

    def around(x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)[:, None]
        return F.conv2d(flat, kernel, padding=1).view_as(x)

    given = images.float() * known
    right = around(given) * hole
    filled = torch.zeros_like(right)
    residual, direction = right.clone(), right.clone()
    square = (residual**2).sum((2, 3), keepdim=True)
    target = tolerance**2 * square
    for _ in range(max_steps):
        if bool((square <= target).all()):
            break
        image = hole * (inside * direction - around(direction))
        step = square / (direction * image).sum((2, 3), keepdim=True).clamp(min=1e-30)
        filled += step * direction
        residual -= step * image
        fresh = (residual**2).sum((2, 3), keepdim=True)
        direction = residual + fresh / square.clamp(min=1e-30) * direction
        square = fresh
    generator = torch.Generator().manual_seed(0)
    field = torch.randn(filled.shape[1:], generator=generator).to(filled)
    return (given + hole * (filled + noise * field)).to(images.dtype)
