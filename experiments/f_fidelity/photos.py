"""Photographs that scikit-image ships, and a judge tuned on crops of them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ritornello.common.optional import require
from ritornello.methods.f_fidelity import RandomRemoval
from ritornello.methods.f_fidelity.finetune import train_classifier

NAMES = ("chelsea", "coffee", "astronaut", "rocket", "camera")


def load_photos(pixels: int) -> Tensor:
    """Square centre crops with mean = std = 0.5, (photos, 3, pixels, pixels).

    Only photographs that the package carries with it are read.
    """
    data = require("skimage.data", extra="assets")
    crops = []
    for name in NAMES:
        picture = torch.from_numpy(getattr(data, name)()).float() / 255
        picture = picture[..., None].expand(-1, -1, 3) if picture.ndim == 2 else picture
        height, width, _ = picture.shape
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        square = picture[top : top + side, left : left + side].movedim(2, 0)[None]
        crops.append(
            F.interpolate(
                square, size=(pixels, pixels), mode="bicubic", antialias=True, align_corners=False
            )
        )
    return (torch.cat(crops).clamp(0, 1) - 0.5) / 0.5


def finetuned(
    model: nn.Module,
    photos: Tensor,
    answers: Tensor,
    *,
    steps: int,
    learning_rate: float,
    beta: float,
    seed: int,
) -> nn.Module:
    """The network after a few steps on flipped, shifted photographs under random removal.

    Batch statistics stay those of ImageNet: five photographs are too few to renew them.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0

    def batch(number: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed * 1009 + number)
        shift = torch.randint(-8, 9, (2,), generator=generator).tolist()
        moved = photos.roll(shift, dims=(2, 3))
        flip = torch.rand((), generator=generator) < 0.5
        return (moved.flip(3) if flip else moved), answers

    return train_classifier(
        model,
        batch,
        steps=steps,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=learning_rate),
        augmentation=RandomRemoval(beta),
        seed=seed,
    )
