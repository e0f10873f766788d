"""Critical regions of pairs of masks: the wrong regions that change the topology (sec. 3)."""

from typing import Literal

import torch
from jaxtyping import Bool, Int, Int32, UInt8
from torch import Tensor

from ritornello.common.kernels.dispatch import choose_backend, device_obstacle
from ritornello.methods.topograph import native
from ritornello.methods.topograph.codes import (
    Connectivity,
    check_connectivity,
    check_masks,
    combine,
)
from ritornello.methods.topograph.graph import build_graph, critical_nodes

Backend = Literal["auto", "compiled", "scipy", "torch", "reference"]
BACKENDS = ("auto", "compiled", "scipy", "torch", "reference")


def critical_regions(
    pred: Bool[Tensor, "*batch height width"],
    gt: Bool[Tensor, "*batch height width"],
    *,
    connectivity: Connectivity = 8,
    pad: bool = True,
    ignore: Bool[Tensor, "*batch height width"] | None = None,
    backend: Backend = "auto",
) -> tuple[Int32[Tensor, "*batch height width"], int]:
    """Finds the wrong regions whose correction changes the topology.

    If there is none (and `pad` is on), intersection, prediction, label and union are homotopy
    equivalent by their inclusions, and `diu` is 0.

    Args:
        pred, gt: masks of one image or a batch, bool or 0 and 1.
        connectivity: of the foreground; the background has the other one.
        pad: put a ring of background around each image. Without it a bridge along the border has
            background on one side only and is missed.
        ignore: pixels that count as background of both masks.
        backend: "compiled" (C++, CPU), "scipy" (CPU), "torch" (any device), "reference" (the
            published procedure, slow), or "auto": RITORNELLO_BACKEND if set, else the fastest.

    Returns:
        The region of each pixel, −1 where it is in none; regions are numbered by their first pixel
        in raster order, image after image. And how many there are.

    Raises:
        ValueError: masks that do not fit or are not binary, an unknown or unusable backend.
    """
    check_connectivity(connectivity)
    pred, gt = check_masks(pred, gt)
    if ignore is not None:
        ignore, _ = check_masks(ignore, pred)
        pred, gt = pred & ~ignore, gt & ~ignore
    first, second = (x.reshape(-1, *pred.shape[-2:]) for x in (pred, gt))
    codes = combine(first, second, connectivity, pad)
    pixel, region, count = critical_pixels(codes, backend, pad)
    regions = torch.full(pred.shape, -1, dtype=torch.int32, device=pred.device)
    regions.view(-1)[pixel] = region.int()
    return regions, count


def critical_pixels(
    codes: UInt8[Tensor, "images height width"], backend: Backend, padded: bool
) -> tuple[Int[Tensor, "pixels"], Int[Tensor, "pixels"], int]:
    """The pixels of critical regions of combined four-class images, in raster order.

    Args:
        codes: four-class images.
        backend: as in `critical_regions`.
        padded: whether the images have a ring; pixels are counted without it.

    Returns:
        Flat indices of pixels, image after image; the region of each; how many regions there are.
    """
    device = codes.device
    available = {
        "compiled": device_obstacle(device, "cpu") or native.obstacle(),
        "scipy": device_obstacle(device, "cpu"),
        "torch": None,
        "reference": None,
    }
    requested = None if backend == "auto" else backend
    chosen = choose_backend("critical_regions", requested, available, device)
    if chosen == "compiled":
        pixel, region, count = native.critical_pixels(codes)
    elif chosen == "reference":
        from ritornello.methods.topograph import reference

        pixel, region, count = reference.critical_pixels(codes)
    else:
        pixel, region, count = _pixels_of_graph(codes, "scipy" if chosen == "scipy" else "torch")
    if padded:
        _, height, width = codes.shape
        row, column = pixel // width, pixel % width
        image, row = row // height, row % height
        pixel = (image * (height - 2) + row - 1) * (width - 2) + column - 1
    return pixel, region, count


def _pixels_of_graph(
    codes: Tensor, backend: Literal["scipy", "torch"]
) -> tuple[Tensor, Tensor, int]:
    graph = build_graph(codes, backend)
    critical = critical_nodes(graph)
    nodes = graph.labels.flatten()
    pixel = critical[nodes].nonzero()[:, 0]
    owner = graph.contracted[nodes[pixel]]
    first = pixel.new_full((len(critical),), codes.numel())
    first.scatter_reduce_(0, owner, pixel, "amin")
    starts, region = first[owner].unique(return_inverse=True)
    return pixel, region, len(starts)
