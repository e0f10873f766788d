"""Random pairs of masks."""

import pytest
import torch
from torch.nn import functional as F


@pytest.fixture
def draw(generator):
    """draw(count, height, width): smooth masks, and the same with some pixels changed."""

    def draw_pairs(count, height, width, *, changed=0.3):
        shape = (count, 1, height, width)
        field = torch.randn(shape, generator=generator)
        noise = torch.randn(shape, generator=generator)
        smooth = [F.avg_pool2d(x, 3, 1, 1) for x in (field, noise)]
        gt = smooth[0] > 0
        return ((smooth[0] + changed * smooth[1]) > 0)[:, 0], gt[:, 0]

    return draw_pairs


@pytest.fixture
def canvas():
    """canvas(*rectangles): a 15 × 15 mask of half-open rectangles (top, bottom, left, right)."""

    def paint(*rectangles):
        mask = torch.zeros(15, 15, dtype=torch.bool)
        for top, bottom, left, right in rectangles:
            mask[top:bottom, left:right] = True
        return mask

    return paint
