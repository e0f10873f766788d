"""Labelling and critical regions in C++ (topology.cpp), built at first use, on a CPU."""

import ctypes
from typing import Any

import torch
from jaxtyping import Int, Int32, UInt8
from torch import Tensor

from ritornello.common.kernels.compiled import build_obstacle, load_library
from ritornello.methods.topograph.codes import diagonal_rule

SOURCE = (__package__, "topology.cpp")


def obstacle() -> str | None:
    """Why this backend cannot run here; None when it can."""
    return build_obstacle(*SOURCE)


def label(codes: UInt8[Tensor, "images height width"]) -> tuple[Int32[Tensor, "..."], int]:
    """4-connected components of equal codes, numbered by first pixel, and how many there are."""
    codes = codes.contiguous()
    labels = torch.empty(codes.shape, dtype=torch.int32)
    function = _function("label_components")
    function.restype = ctypes.c_int64
    return labels, function(*_pointers(codes, labels), *_sizes(*codes.shape))


def critical_pixels(
    codes: UInt8[Tensor, "images height width"],
) -> tuple[Int[Tensor, "pixels"], Int[Tensor, "pixels"], int]:
    """Pixels of critical regions, the region of each, and how many regions there are."""
    codes = codes.contiguous()
    pixel, region = torch.empty(2, codes.numel(), dtype=torch.int64)
    found = torch.empty(2, dtype=torch.int64)
    function = _function("critical_regions")
    function.restype = None
    arrays = _pointers(codes, diagonal_rule(), pixel, region, found)
    function(*arrays, *_sizes(*codes.shape, torch.get_num_threads()))
    listed, count = found.tolist()
    return pixel[:listed], region[:listed], count


def _function(name: str) -> Any:
    return getattr(load_library(*SOURCE), name)


def _pointers(*arrays: Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(array.data_ptr()) for array in arrays]


def _sizes(*sizes: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(size) for size in sizes]
