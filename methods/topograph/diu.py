"""DIU, the strict topology metric ξ, computed exactly; and the looser topological errors.

A pixel is a closed square: the foreground of a mask is the union of its pixels' cells on a grid of
vertices, edges and faces, (2 height + 1) × (2 width + 1). There 4-connected components of cells are
the components of the set (foreground) and of its complement (background).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from ritornello.methods.topograph.codes import Connectivity, check_connectivity, check_masks
from ritornello.methods.topograph.components import LabelBackend, label_components

Boundary = Literal["padded", "free"]


@dataclass(frozen=True)
class DIUResult:
    """ξ of each image and its parts, integers of shape (*batch).

    F is the foreground, the intersection of both masks is included in their union.

    Attributes:
        ker_fg: components of the intersection that the union merges.
        coker_fg: components of the union without a pixel of the intersection.
        ker_bg: components of the union's background that the intersection's background merges.
        coker_bg: components of the intersection's background without one of the union's.
    """

    ker_fg: Int[Tensor, "*batch"]
    coker_fg: Int[Tensor, "*batch"]
    ker_bg: Int[Tensor, "*batch"]
    coker_bg: Int[Tensor, "*batch"]

    @property
    def total(self) -> Int[Tensor, "*batch"]:
        """ξ = dim ker i_* + dim coker i_* of i: F(P) ∩ F(G) → F(P) ∪ F(G) (sec. 4)."""
        return self.ker_fg + self.coker_fg + self.ker_bg + self.coker_bg


def diu(
    pred: Bool[Tensor, "*batch height width"],
    gt: Bool[Tensor, "*batch height width"],
    connectivity: Connectivity = 8,
    boundary: Boundary = "padded",
    backend: LabelBackend = "auto",
) -> DIUResult:
    """The discrepancy between intersection and union, exact.

    Loops are counted as components of the background (Alexander duality).

    Args:
        pred, gt: masks of one image or a batch, bool or 0 and 1.
        connectivity: of the foreground; the background has the other one.
        boundary: "padded" puts a ring of background around each image; "free" takes the rectangle
            as it is, so that background cut off by the border counts as a component.
        backend: who labels components.

    Raises:
        ValueError: masks that do not fit or are not binary, another connectivity or boundary.
    """
    check_connectivity(connectivity)
    if boundary not in ("padded", "free"):
        raise ValueError(f"boundary must be 'padded' or 'free', got {boundary!r}")
    pred, gt = check_masks(pred, gt)
    batch = pred.shape[:-2]
    ring = int(boundary == "padded")
    pred, gt = (F.pad(x.reshape(-1, *x.shape[-2:]), [ring] * 4) for x in (pred, gt))
    # A 4-connected foreground is the background of the complements.
    pred, gt = (closed_cells(x if connectivity == 8 else ~x) for x in (pred, gt))
    intersection, union = Parts(pred & gt, backend), Parts(pred | gt, backend)
    near = _defects(intersection, union, 1)
    far = _defects(union, intersection, 0)
    foreground, background = (near, far) if connectivity == 8 else (far, near)
    parts = (part.view(batch) for part in (*foreground, *background))
    return DIUResult(*parts)


def closed_cells(
    mask: Bool[Tensor, "images height width"],
) -> UInt8[Tensor, "images rows columns"]:
    """Every cell that belongs to a pixel of the mask: vertices, edges and faces."""
    images, height, width = mask.shape
    cells = torch.zeros(images, 2 * height + 1, 2 * width + 1, dtype=torch.uint8).to(mask.device)
    for y in range(3):
        for x in range(3):
            cells[:, y : y + 2 * height : 2, x : x + 2 * width : 2] |= mask
    return cells


class Parts:
    """The components of a set of cells and of its complement, and where they lie."""

    def __init__(self, cells: UInt8[Tensor, "images rows columns"], backend: LabelBackend):
        self.cells = cells
        self.labels, self.count = label_components(cells, backend)
        flat = self.labels.flatten()
        self.side = cells.new_empty(self.count)  # 1 for a part of the set, 0 of the complement
        self.side[flat] = cells.flatten()
        self.image = flat.new_empty(self.count)
        numbers = torch.arange(len(cells), device=cells.device)[:, None, None]
        self.image[flat] = numbers.expand_as(cells).flatten()

    def per_image(self, chosen: Bool[Tensor, "parts"]) -> Int[Tensor, "images"]:
        """How many of the chosen parts each image has."""
        return torch.bincount(self.image[chosen], minlength=len(self.cells))

    def number(self, side: int) -> Int[Tensor, "images"]:
        """How many parts the set (1) or its complement (0) has in each image."""
        return self.per_image(self.side == side)

    def met_by(self, where: Bool[Tensor, "images rows columns"]) -> Bool[Tensor, "parts"]:
        """Which parts hold one of the given cells."""
        met = torch.zeros(self.count, dtype=torch.bool, device=where.device)
        met[self.labels[where]] = True
        return met


def _defects(source: Parts, target: Parts, side: int) -> tuple[Tensor, Tensor]:
    """Kernel and cokernel of components of `source` → those of `target`, which includes it."""
    rank = target.per_image(target.met_by(source.cells == side))
    return source.number(side) - rank, target.number(side) - rank


@dataclass(frozen=True)
class BettiErrors:
    """Errors that do not ask where a feature lies, or only loosely, integers of shape (*batch).

    Attributes:
        betti_0, betti_1: absolute differences of the numbers of components and of loops.
        matching: features of either mask that have no partner in the other (Betti matching error).
    """

    betti_0: Int[Tensor, "*batch"]
    betti_1: Int[Tensor, "*batch"]
    matching: Int[Tensor, "*batch"]


def betti_errors(
    pred: Bool[Tensor, "*batch height width"],
    gt: Bool[Tensor, "*batch height width"],
    backend: LabelBackend = "auto",
) -> BettiErrors:
    """Betti errors and the Betti matching error, 8-connected foreground, padded.

    Components match when one component of the union holds both, one pair for each component of the
    union; loops match when the background of the union has a component that is the first (in raster
    order) within the loop of either mask: Betti matching of binary images with ties broken by
    position.

    Raises:
        ValueError: masks that do not fit or are not binary.
    """
    pred, gt = check_masks(pred, gt)
    batch = pred.shape[:-2]
    padded = [F.pad(x.reshape(-1, *x.shape[-2:]), [1] * 4) for x in (pred, gt)]
    cells = [closed_cells(x) for x in padded]
    masks = [Parts(x, backend) for x in cells]
    union = Parts(cells[0] | cells[1], backend)
    both = union.met_by(cells[0] == 1) & union.met_by(cells[1] == 1)
    first = [_first_within(union, mask) for mask in masks]
    # The outer background of both masks always matches: it is no loop.
    matched = union.per_image(both) + union.per_image(first[0] & first[1]) - 1
    components, loops = (
        torch.stack([mask.number(side) for mask in masks]) - outer
        for side, outer in ((1, 0), (0, 1))
    )
    unmatched = (components + loops).sum(0) - 2 * matched
    betti_0, betti_1, matching = (
        x.view(batch) for x in (components.diff(dim=0).abs(), loops.diff(dim=0).abs(), unmatched)
    )
    return BettiErrors(betti_0, betti_1, matching)


def _first_within(union: Parts, mask: Parts) -> Bool[Tensor, "parts"]:
    """Which background parts of the union come first within a background part of the mask."""
    where = (union.cells == 0).flatten().nonzero()[:, 0]
    inner, outer = union.labels.flatten()[where], mask.labels.flatten()[where]
    earliest = where.new_full((mask.count,), union.cells.numel())
    earliest.scatter_reduce_(0, outer, where, "amin")
    first = torch.zeros(union.count, dtype=torch.bool, device=where.device)
    first[inner[where == earliest[outer]]] = True
    return first
