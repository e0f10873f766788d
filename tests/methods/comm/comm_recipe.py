"""The golden files' weights and inputs, computed from their names."""

import zlib

import numpy as np
import torch
from torch import Tensor, nn


def fill(name: str, *shape: int) -> Tensor:
    """Uniform values in [-1, 1) that depend on the name alone, float64."""
    index = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = index * np.uint64(0x9E3779B97F4A7C15) + np.uint64(zlib.crc32(name.encode()))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    values = (z >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
    return torch.from_numpy(values.reshape(shape))


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
