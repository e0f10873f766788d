"""The golden files' weights and inputs, computed from their names."""

import golden_fill
import numpy as np
import torch
from torch import Tensor, nn


def fill(name: str, *shape: int) -> Tensor:
    """Uniform values in [-1, 1) that depend on the name alone, float64."""
    return torch.from_numpy(golden_fill.fill(name, shape))


def filled(name: str, *shape: int) -> Tensor:
    return fill(name, *shape).float()


@torch.no_grad()
def fill_module(module: nn.Module, tag: str, skip: tuple[str, ...] = ()) -> None:
    """Gives every parameter its recipe value, but for those whose last name is in `skip`."""
    for name, parameter in module.named_parameters():
        if name.rsplit(".", 1)[-1] in skip:
            continue
        x = fill(f"{tag}.{name}", *parameter.shape)
        if name.endswith("bias"):
            x = 0.1 * x
        elif name.endswith("weight") and parameter.ndim == 1:
            x = 1 + 0.1 * x
        elif parameter.ndim >= 2:
            x = x * (3 / np.prod(parameter.shape[1:])) ** 0.5
        parameter.copy_(x)
