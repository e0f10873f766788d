"""The combined four-class image of a prediction and a label, and the rule for its corners.

Code of a pixel: c = p + 2 g: 0 true negative, 1 false positive, 2 false negative, 3 true positive.
"""

import functools
from typing import Literal

import torch
from jaxtyping import Bool, UInt8
from torch import Tensor
from torch.nn import functional as F

TN, FP, FN, TP = range(4)
Connectivity = Literal[4, 8]

# What the rule of a 2×2 block says: no edge, an edge along a diagonal, or a soft one.
NONE, MAIN, ANTI, SOFT_MAIN, SOFT_ANTI = range(5)
_WEIGHTS = (-4, 1, 2, 16)  # of TN, FP, FN, TP


@functools.cache
def diagonal_rule() -> UInt8[Tensor, "256"]:
    """Which diagonal of a block [[a, b], [c, d]] is an edge, at index a + 4b + 16c + 64d (sec. 3).

    The diagonal with the heavier foreground has the corner. Soft edges join two regions of one mask
    whose corner belongs to the contact strip of the other: they count for the mask's own
    connectivity, not for adjacency.
    """
    weights = torch.tensor(_WEIGHTS)
    index = torch.arange(256)
    a, b, c, d = (weights[(index >> shift) & 3] for shift in (0, 2, 4, 6))
    balance = a + d - b - c
    rule = torch.full((256,), NONE, dtype=torch.uint8)
    rule[balance > 7] = MAIN
    rule[balance < -7] = ANTI
    rule[(balance == 4) | (balance == 7)] = SOFT_MAIN
    rule[(balance == -4) | (balance == -7)] = SOFT_ANTI
    return rule


def block_rule(codes: UInt8[Tensor, "images height width"]) -> UInt8[Tensor, "images rows columns"]:
    """The rule's answer for every 2×2 block, (images, height − 1, width − 1)."""
    a, b = codes[:, :-1, :-1], codes[:, :-1, 1:]
    c, d = codes[:, 1:, :-1], codes[:, 1:, 1:]
    block = a | (b << 2) | (c << 4) | (d << 6)
    return diagonal_rule().to(codes.device)[block.int()]


def combine(
    pred: Bool[Tensor, "images height width"],
    gt: Bool[Tensor, "images height width"],
    connectivity: Connectivity,
    pad: bool,
) -> UInt8[Tensor, "images rows columns"]:
    """Codes of two masks; `pad` adds a ring of background around each image.

    The rule has an 8-connected foreground; a 4-connected one is the background of the complements,
    so both masks are complemented (c becomes 3 − c) and the same rule is used.
    """
    codes = pred.to(torch.uint8).add_(gt.to(torch.uint8), alpha=2)
    if pad:
        codes = F.pad(codes, (1, 1, 1, 1), value=TN)
    return codes if connectivity == 8 else codes.neg_().add_(TP)


def check_connectivity(connectivity: int) -> None:
    """Raises ValueError unless it is 4 or 8."""
    if connectivity not in (4, 8):
        raise ValueError(f"connectivity must be 4 or 8, got {connectivity!r}")


def check_masks(pred: Tensor, gt: Tensor) -> tuple[Bool[Tensor, "..."], Bool[Tensor, "..."]]:
    """Two binary masks of one shape as bool, (height, width) or (batch, height, width).

    Raises:
        ValueError: shapes that differ or are not of 2-D images, empty ones, values beside 0 and 1.
    """
    if pred.shape != gt.shape:
        raise ValueError(
            f"pred and gt must have one shape, got {tuple(pred.shape)} and {tuple(gt.shape)}"
        )
    if pred.ndim not in (2, 3):
        raise ValueError(
            "pred must be (height, width) or (batch, height, width), 2D images only, "
            f"got {tuple(pred.shape)}"
        )
    if pred.numel() == 0:
        raise ValueError(f"pred must not be empty, got {tuple(pred.shape)}")
    return _binary("pred", pred), _binary("gt", gt)


def _binary(name: str, mask: Tensor) -> Bool[Tensor, "..."]:
    if mask.dtype == torch.bool:
        return mask
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError(f"{name} must hold only 0 and 1, got {mask.unique()[:5].tolist()} …")
    return mask != 0
