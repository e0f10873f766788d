"""The published networks: a residual U-Net whose weights have MONAI's names, and their loading."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ritornello.common.errors import UserError


class _Convolution(nn.Sequential):
    """A convolution, then instance norm and PReLU unless it is the last."""

    def __init__(self, conv: nn.Module, channels: int, last: bool = False):
        super().__init__()
        self.add_module("conv", conv)
        if not last:
            adn = nn.Sequential()
            adn.add_module("N", nn.InstanceNorm2d(channels))
            adn.add_module("A", nn.PReLU())
            self.add_module("adn", adn)


class _ResidualUnit(nn.Module):
    """`units` convolutions beside a projection."""

    def __init__(self, inputs: int, outputs: int, stride: int, units: int, last: bool = False):
        super().__init__()
        self.conv = nn.Sequential()
        for n in range(units):
            first = n == 0
            conv = nn.Conv2d(
                inputs if first else outputs, outputs, 3, stride if first else 1, padding=1
            )
            self.conv.add_module(f"unit{n}", _Convolution(conv, outputs, last and n == units - 1))
        self.residual: nn.Module = nn.Identity()
        if stride > 1:
            self.residual = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        elif inputs != outputs:
            self.residual = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x) + self.conv(x)


class _Skip(nn.Module):
    """The input beside what the levels below make of it."""

    def __init__(self, submodule: nn.Module):
        super().__init__()
        self.submodule = submodule

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.submodule(x)], dim=1)


class ResidualUNet(nn.Module):
    """U-Net of residual units, which the paper trains (MONAI's `UNet` in 2D).

    Args:
        channels: width of each level.
        strides: of the steps between levels, one fewer than channels.
        residual_units: convolutions of an encoder unit.
        classes: output channels.
        in_channels: of the images.
    """

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        residual_units: int,
        classes: int = 2,
        in_channels: int = 1,
    ):
        super().__init__()
        if len(strides) != len(channels) - 1 or residual_units < 1:
            raise ValueError(
                "strides must be one fewer than channels and residual_units >= 1, got "
                f"{list(strides)}, {list(channels)}, {residual_units}"
            )
        self.scale = math.prod(strides)
        self.model = _level(in_channels, classes, channels, strides, residual_units, top=True)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes height width"]:
        """Logits; height and width must be multiples of the product of strides.

        Raises:
            UserError: an image of another size.
        """
        if images.shape[2] % self.scale or images.shape[3] % self.scale:
            raise UserError(
                f"images (tile) must have sides that are multiples of {self.scale}, "
                f"got {tuple(images.shape[2:])}"
            )
        return self.model(images)


def _level(
    inputs: int,
    outputs: int,
    channels: Sequence[int],
    strides: Sequence[int],
    units: int,
    top: bool = False,
) -> nn.Sequential:
    width, stride = channels[0], strides[0]
    if len(channels) > 2:
        below = _level(width, width, channels[1:], strides[1:], units)
        joined = 2 * width
    else:
        below = _ResidualUnit(width, channels[1], 1, units)
        joined = width + channels[1]
    grow = nn.ConvTranspose2d(joined, outputs, 3, stride, padding=1, output_padding=stride - 1)
    up = nn.Sequential(_Convolution(grow, outputs), _ResidualUnit(outputs, outputs, 1, 1, last=top))
    return nn.Sequential(_ResidualUnit(inputs, width, stride, units), _Skip(below), up)


def load_published(checkpoint: str | Path) -> ResidualUNet:
    """A published network; its sizes are read off its weights.

    Raises:
        UserError: no such file, or not a checkpoint of this kind of network.
    """
    path = Path(checkpoint)
    if not path.is_file():
        raise UserError(f"checkpoint={str(path)!r}: there is no such file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        weights = state.get("model", state) if isinstance(state, Mapping) else {}
        network = ResidualUNet(**_sizes(weights))
        network.load_state_dict(weights)
    except (KeyError, RuntimeError, ValueError, EOFError, UnpicklingError) as error:
        raise UserError(
            f"checkpoint={str(path)!r} does not hold a published residual U-Net: {error}"
        ) from error
    return network.eval()


def _sizes(weights: Mapping[str, Tensor]) -> dict:
    prefix, channels, strides = "model.", [], []
    first = weights["model.0.conv.unit0.conv.weight"]
    units = sum(f"model.0.conv.unit{n}.conv.weight" in weights for n in range(16))
    while f"{prefix}0.conv.unit0.conv.weight" in weights:
        channels.append(len(weights[f"{prefix}0.conv.unit0.conv.weight"]))
        projection = weights.get(f"{prefix}0.residual.weight")
        # A projection is 3 × 3 where the unit takes steps of two pixels, else 1 × 1.
        strides.append(2 if projection is not None and projection.shape[-1] == 3 else 1)
        prefix += "1.submodule."
    channels.append(len(weights[f"{prefix}conv.unit0.conv.weight"]))
    return {
        "channels": channels,
        "strides": strides,
        "residual_units": units,
        "classes": weights["model.2.0.conv.weight"].shape[1],
        "in_channels": first.shape[1],
    }
