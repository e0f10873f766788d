"""Sublevel-set persistence of images in dimension 0, with births read from further fields."""

import ctypes

import numpy as np

from ritornello.common.kernels.compiled import build_obstacle, load_library
from ritornello.common.kernels.dispatch import choose_backend

SOURCE = (__package__, "persistence.cpp")
_STEPS = ((-1, 0), (0, -1), (0, 1), (1, 0), (-1, -1), (-1, 1), (1, -1), (1, 1))


def merges(
    order: np.ndarray,
    fields: list[np.ndarray],
    connectivity: int,
    backend: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Every merge of two components as the pixels of an image enter by increasing value.

    With `order` itself as a field this is its barcode: a bar from the value of the dying pixel to
    that of the merging one. With another field it is that of the image of the inclusion of the
    field's sublevel sets in those of `order`, of which the field is no less.

    Args:
        order: values, float32 (height, width); ties are broken by position.
        fields: each gives a component the birth of its least pixel.
        connectivity: 4 or 8.
        backend: "compiled" (C++), "python" (slow), or None for the fastest.

    Returns:
        The merging pixels, (merges,), and for every field the pixel whose component ends there,
        (fields, merges); flat indices.
    """
    available = {"compiled": build_obstacle(*SOURCE), "python": None}
    if choose_backend("merges", backend, available, "cpu") == "python":
        return _merges_by_python(order, fields, connectivity)
    height, width = order.shape
    order = np.ascontiguousarray(order, dtype=np.float32)
    stacked = np.ascontiguousarray(np.stack(fields), dtype=np.float32)
    at = np.empty(order.size, dtype=np.int32)
    dying = np.empty((len(fields), order.size), dtype=np.int32)
    function = load_library(*SOURCE).merges
    function.restype = ctypes.c_int64
    sizes = (ctypes.c_int64(n) for n in (len(fields), height, width, connectivity))
    inputs = (ctypes.c_void_p(x.ctypes.data) for x in (order, stacked))
    outputs = (ctypes.c_void_p(x.ctypes.data) for x in (at, dying))
    found = function(*inputs, *sizes, *outputs)
    return at[:found], dying[:, :found]


def _merges_by_python(
    order: np.ndarray, fields: list[np.ndarray], connectivity: int
) -> tuple[np.ndarray, np.ndarray]:
    height, width = order.shape
    ranks = [np.argsort(np.argsort(f.ravel(), kind="stable")).tolist() for f in fields]
    parent: dict[int, int] = {}
    least = {pixel: [pixel] * len(fields) for pixel in range(order.size)}

    def find(pixel: int) -> int:
        while parent[pixel] != pixel:
            parent[pixel] = parent[parent[pixel]]
            pixel = parent[pixel]
        return pixel

    at, dying = [], []
    for pixel in np.argsort(order.ravel(), kind="stable").tolist():
        parent[pixel] = pixel
        for down, right in _STEPS[:connectivity]:
            y, x = pixel // width + down, pixel % width + right
            if not (0 <= y < height and 0 <= x < width) or y * width + x not in parent:
                continue
            a, b = find(pixel), find(y * width + x)
            if a == b:
                continue
            pairs = [
                sorted(pair, key=rank.__getitem__)
                for *pair, rank in zip(least[a], least[b], ranks, strict=True)
            ]
            least[a] = [first for first, _ in pairs]
            at.append(pixel)
            dying.append([second for _, second in pairs])
            parent[b] = a
    return np.array(at, dtype=np.int32), np.array(dying, dtype=np.int32).reshape(-1, len(fields)).T
