"""Patches, their positions, and the order in which clusters of them are predicted (sec. 3.3)."""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

Order = Literal["row", "row_reverse", "column", "column_reverse", "random"]
ORDERS = ("row", "row_reverse", "column", "column_reverse", "random")


def patchify(
    images: Float[Tensor, "batch colours height width"], patch_size: int
) -> Float[Tensor, "batch patches pixels"]:
    """Cuts images into square patches, row by row; the pixels of a patch run over row, column and
    colour, colour fastest.

    Raises:
        ValueError: a side is no multiple of `patch_size`.
    """
    if images.shape[-2] % patch_size or images.shape[-1] % patch_size:
        raise ValueError(
            f"patch_size must divide the image sides, got {patch_size} for {tuple(images.shape)}"
        )
    x = images.unflatten(-1, (-1, patch_size)).unflatten(-3, (-1, patch_size))
    return x.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def unpatchify(
    patches: Float[Tensor, "batch patches pixels"], patch_size: int, grid: tuple[int, int]
) -> Float[Tensor, "batch colours height width"]:
    """The inverse of `patchify`."""
    x = patches.unflatten(1, grid).unflatten(-1, (patch_size, patch_size, -1))
    return x.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


def normalize_patches(
    patches: Float[Tensor, "batch patches pixels"], eps: float = 1e-6
) -> Float[Tensor, "batch patches pixels"]:
    """Each patch with mean 0 and (unbiased) variance 1: the paper's best target.

    A constant patch becomes 0.

    Raises:
        ValueError: patches of one value, whose variance does not exist.
    """
    if patches.shape[-1] < 2:
        raise ValueError('target="pixels_norm" needs 2 values a patch or more; use "pixels"')
    mean, variance = patches.mean(-1, keepdim=True), patches.var(-1, keepdim=True)
    return (patches - mean) / (variance + eps).sqrt()


def cluster_order(
    grid: tuple[int, int],
    cluster_size: int,
    order: Order = "row",
    generator: torch.Generator | None = None,
) -> Int[Tensor, "clusters patches"]:
    """Raster index of every patch, cluster after cluster, row by row inside a cluster.

    Args:
        grid: patches per column and row.
        cluster_size: patches per side of a cluster.
        order: of the clusters; "random" draws a permutation from `generator`.
        generator: for "random".

    Raises:
        ValueError: `order` is unknown, `cluster_size` does not divide the grid, or there are fewer
            than two clusters.
    """
    if order not in ORDERS:
        raise ValueError(f"order must be one of {ORDERS}, got {order!r}")
    if cluster_size < 1 or grid[0] % cluster_size or grid[1] % cluster_size:
        raise ValueError(f"cluster_size must divide the grid {grid}, got {cluster_size}")
    rows, columns = grid[0] // cluster_size, grid[1] // cluster_size
    if rows * columns < 2:
        raise ValueError(f"cluster_size={cluster_size} leaves a single cluster of the grid {grid}")
    raster = torch.arange(grid[0] * grid[1]).view(rows, cluster_size, columns, cluster_size)
    patches = raster.permute(0, 2, 1, 3).flatten(2)
    if order.startswith("column"):
        patches = patches.transpose(0, 1)
    patches = patches.flatten(0, 1)
    if order == "random":
        return patches[torch.randperm(len(patches), generator=generator)]
    return patches.flip(0) if order.endswith("reverse") else patches


def cluster_mask(clusters: int, patches: int) -> Bool[Tensor, "queries memory"]:
    """What a query may attend to: the query that predicts cluster a + 1 sees clusters 0..a.

    Args:
        clusters: clusters that are predicted (all but the first).
        patches: patches a cluster.
    """
    allowed = torch.ones(clusters, clusters, dtype=torch.bool).tril()
    return allowed.repeat_interleave(patches, 0).repeat_interleave(patches, 1)


def sincos_positions(grid: tuple[int, int], dim: int) -> Float[Tensor, "patches dim"]:
    """Fixed 2-D positions: sines and cosines of the column in the first half, of the row after.

    Raises:
        ValueError: `dim` is no multiple of 4.
    """
    if dim % 4:
        raise ValueError(f"dim must be a multiple of 4 for sin-cos positions, got {dim}")
    # Single precision throughout and NumPy's sine, as the published tables were made.
    frequencies = 1 / 10000 ** (np.arange(dim // 4, dtype=np.float32) / (dim / 4))
    rows, columns = (np.arange(side, dtype=np.float32) for side in grid)
    column, row = np.meshgrid(columns, rows)
    angles = [x.reshape(-1, 1) * frequencies.astype(np.float32) for x in (column, row)]
    table = np.concatenate([f(x) for x in angles for f in (np.sin, np.cos)], axis=1)
    return torch.from_numpy(table).to(torch.get_default_dtype())


def interpolate_positions(
    positions: Float[Tensor, "1 patches dim"], grid: tuple[int, int], cls_index: int | None
) -> Float[Tensor, "1 tokens dim"]:
    """Positions of a square grid for another grid: bicubic, with a zero row for a class token.

    Raises:
        ValueError: the source grid is not square.
    """
    side = round(positions.shape[1] ** 0.5)
    if side * side != positions.shape[1]:
        raise ValueError(f"positions must be those of a square grid, got {positions.shape[1]}")
    if grid != (side, side):
        image = positions.unflatten(1, (side, side)).permute(0, 3, 1, 2)
        image = F.interpolate(image, size=grid, mode="bicubic", align_corners=False)
        positions = image.flatten(2).mT
    if cls_index is None:
        return positions
    zero = torch.zeros_like(positions[:, :1])
    return torch.cat([positions[:, :cls_index], zero, positions[:, cls_index:]], dim=1)
