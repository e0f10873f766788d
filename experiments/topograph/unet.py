"""A small U-Net for grey images."""

import itertools
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Encoder and decoder of two 3×3 convolutions a level, joined by skip connections.

    Args:
        channels: width of each level, from the image's size down.
        classes: output channels.
    """

    def __init__(self, channels: Sequence[int], classes: int):
        super().__init__()
        widths = [1, *channels]
        self.down = nn.ModuleList(_block(a, b) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(
            _block(low + high, high) for high, low in itertools.pairwise(channels)
        )
        self.head = nn.Conv2d(channels[0], classes, 1)

    def forward(
        self, images: Float[Tensor, "batch 1 height width"]
    ) -> Float[Tensor, "batch classes height width"]:
        x, skips = images, []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        x = skips.pop()
        for block in reversed(self.up):
            skip = skips.pop()
            x = F.interpolate(x, size=skip.shape[-2:], mode="nearest")
            x = block(torch.cat([x, skip], dim=1))
        return self.head(x)
