"""Generated network images: ridges of a Voronoi diagram, with gaps, false strokes and noise."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_SITES_SIZE = 48  # the counts below are for an image of this size and grow with its area


def networks(
    count: int, size: int, seed: int
) -> tuple[Float[Tensor, "count 1 size size"], Int[Tensor, "count size size"]]:
    """Images and masks (0 background, 1 network); the same for the same arguments.

    The mask is where the two nearest of 6 to 11 random sites are within 2 pixels of equally far.
    The image dims it in 6 to 12 discs, adds 3 to 7 false strokes, blurs and adds noise of 0.5.
    """
    pairs = [_network(size, np.random.default_rng([seed, number])) for number in range(count)]
    images, masks = zip(*pairs, strict=True)
    return torch.from_numpy(np.stack(images))[:, None], torch.from_numpy(np.stack(masks)).long()


def _network(size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    from scipy import ndimage, spatial

    area = (size / _SITES_SIZE) ** 2
    grid = np.stack(np.mgrid[:size, :size], axis=-1).astype(np.float32)
    sites = rng.uniform(0, size, (max(2, round(area * rng.integers(6, 12))), 2))
    nearest, _ = spatial.cKDTree(sites).query(grid, k=2)
    mask = nearest[..., 1] - nearest[..., 0] < 2
    image = mask.astype(np.float32)
    for _ in range(round(area * rng.integers(6, 13))):
        centre, radius = rng.uniform(0, size, 2), rng.uniform(2, 5)
        near = _window(image, centre, radius)
        disc = ((grid[near] - centre) ** 2).sum(-1) < radius**2
        image[near][disc] *= rng.uniform(0.1, 0.5)
    for _ in range(round(area * rng.integers(3, 8))):
        _add_stroke(image, rng)
    image = ndimage.gaussian_filter(image, 0.7)
    image += rng.normal(0, 0.5, image.shape)
    return image.astype(np.float32), mask


def _window(image: np.ndarray, centre: np.ndarray, radius: float) -> tuple[slice, ...]:
    low = np.maximum(np.floor(centre - radius), 0).astype(int)
    return tuple(slice(a, int(c + radius) + 2) for a, c in zip(low, centre, strict=True))


def _add_stroke(image: np.ndarray, rng: np.random.Generator) -> None:
    """A false line of 6 to 18 pixels' length, two pixels wide."""
    size = len(image)
    start, angle, length = rng.uniform(0, size, 2), rng.uniform(0, 2 * np.pi), rng.uniform(6, 18)
    steps = np.arange(0, length, 0.5)[:, None] * [np.sin(angle), np.cos(angle)]
    points = np.floor(start + steps).astype(int)
    drawn = np.zeros(image.shape, dtype=bool)
    for shift in ((0, 0), (0, 1)):
        y, x = (points + shift).T
        inside = (y >= 0) & (y < size) & (x >= 0) & (x < size)
        drawn[y[inside], x[inside]] = True
    image[drawn] += 0.5


def scores_around(
    masks: Int[Tensor, "count size size"], seed: int, *, noise: float = 0.6
) -> Float[Tensor, "count 2 size size"]:
    """Logits of a plausible wrong prediction: the masks' own, with smooth noise upon them."""
    from scipy import ndimage

    rng = np.random.default_rng([seed, 1])
    field = ndimage.gaussian_filter(rng.normal(size=tuple(masks.shape)), (0, 1.5, 1.5))
    field = torch.from_numpy(field / field.std()).float()
    margin = 2 * masks.float() - 1 + noise * field
    return torch.stack([-margin, margin], dim=1)
