"""Connected components of images and of graphs.

Three ways: "compiled" (C++ union-find) and "scipy" on a CPU, "torch" on any device.
"""

from typing import Literal, cast

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from ritornello.common.kernels.dispatch import choose_backend, device_obstacle
from ritornello.methods.topograph import native

LabelBackend = Literal["auto", "compiled", "scipy", "torch"]


def label_components(
    codes: UInt8[Tensor, "images height width"], backend: LabelBackend = "auto"
) -> tuple[Int[Tensor, "images height width"], int]:
    """4-connected components of equal values, numbered over all images.

    Args:
        codes: values 0 to 3.
        backend: who labels; "auto" takes the fastest that runs on the device of `codes`.

    Returns:
        The component of each pixel (int64; the numbers follow no order) and how many there are.
    """
    device = codes.device
    available = {
        "compiled": device_obstacle(device, "cpu") or native.obstacle(),
        "scipy": device_obstacle(device, "cpu"),
        "torch": None,
    }
    requested = None if backend == "auto" else backend
    chosen = choose_backend("label_components", requested, available, device)
    if chosen == "compiled":
        labels, count = native.label(codes)
        return labels.long(), count
    return _label_by_scipy(codes) if chosen == "scipy" else _label_by_torch(codes)


def _label_by_scipy(codes: Tensor) -> tuple[Tensor, int]:
    import numpy as np
    from scipy import ndimage

    array = codes.numpy()
    cross = np.zeros((3, 3, 3), dtype=bool)  # no neighbours along the axis of images
    cross[1, 1, :] = cross[1, :, 1] = True
    labels, total = np.zeros(array.shape, dtype=np.int64), 0
    for code in range(4):
        mask = array == code
        found = np.zeros(array.shape, dtype=np.int32)
        count = cast(int, ndimage.label(mask, cross, output=found))
        np.add(found, total - 1, out=labels, where=mask, casting="unsafe")
        total += count
    return torch.from_numpy(labels), total


def _label_by_torch(codes: Tensor) -> tuple[Tensor, int]:
    pixels = torch.arange(codes.numel(), device=codes.device).view(codes.shape)
    right = codes[:, :, 1:] == codes[:, :, :-1]
    down = codes[:, 1:] == codes[:, :-1]
    heads = torch.cat([pixels[:, :, 1:][right], pixels[:, 1:][down]])
    tails = torch.cat([pixels[:, :, :-1][right], pixels[:, :-1][down]])
    roots = _hook_and_jump(torch.stack([heads, tails]), codes.numel())
    is_root = roots == pixels.flatten()
    numbers = is_root.cumsum(0) - 1
    return numbers[roots].view(codes.shape), int(is_root.sum())


def graph_components(
    edges: Int[Tensor, "2 edges"], num_nodes: int, *, by_scipy: bool
) -> Int[Tensor, "nodes"]:
    """The component of each node: a number that the nodes of a component share, below num_nodes."""
    if not by_scipy:
        return _hook_and_jump(edges, num_nodes)
    import numpy as np
    from scipy import sparse

    ones = np.ones(edges.shape[1], dtype=bool)
    matrix = sparse.coo_matrix((ones, edges.numpy()), shape=(num_nodes, num_nodes))
    _, component = sparse.csgraph.connected_components(matrix, directed=False)
    return torch.from_numpy(component).long()


def _hook_and_jump(edges: Tensor, num_nodes: int) -> Tensor:
    """The least node of each component, by hooking roots onto lower ones and pointer jumping."""
    root = torch.arange(num_nodes, device=edges.device)
    while edges.shape[1]:
        ends = root[edges]
        edges = ends[:, ends[0] != ends[1]]  # what is still apart, between roots
        low = edges.amin(0)
        for end in edges:
            root = root.scatter_reduce(0, end, low, "amin")
        flat = False
        while not flat:
            jumped = root[root]
            flat = torch.equal(jumped, root)
            root = jumped
    return root
