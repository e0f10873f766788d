"""The published procedure, image by image, region by region: the oracle, and the peer to beat.

A labelling of each class, dense adjacency matrices, a networkx graph whose nodes are contracted,
and one search through the image for the pixels of each critical region.
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from ritornello.methods.topograph.codes import ANTI, FP, MAIN, SOFT_ANTI, SOFT_MAIN, TN, block_rule


def critical_pixels(codes: Tensor) -> tuple[Tensor, Tensor, int]:
    """Pixels of critical regions, the region of each, and how many; as `native.critical_pixels`."""
    found = []
    for number, image in enumerate(codes.cpu()):
        for rows, columns in regions_of_image(image):
            found.append((number * image.shape[0] + rows) * image.shape[1] + columns)
    found.sort(key=lambda pixels: pixels[0])
    pixel = np.concatenate([*found, np.zeros(0, dtype=np.int64)])
    region = np.repeat(np.arange(len(found)), [len(pixels) for pixels in found])
    order = np.argsort(pixel)
    pixel, region = (torch.from_numpy(x[order]).to(codes.device) for x in (pixel, region))
    return pixel, region, len(found)


def regions_of_image(codes: Tensor) -> list[tuple[np.ndarray, ...]]:
    """Rows and columns of every critical region of one image of codes."""
    labels, node_class = _label(codes.numpy())
    graph = _graph(labels, node_class, block_rule(codes[None])[0].numpy())
    graph, members = _contract(graph)
    clusters = {bit: _clusters(graph, bit) for bit in (1, 2)}
    return [
        np.nonzero(np.isin(labels, members[node]))
        for node in graph
        if _is_critical(graph, node, clusters)
    ]


def _label(codes: np.ndarray) -> tuple[np.ndarray, list[int]]:
    from scipy import ndimage

    labels, node_class = np.zeros(codes.shape, dtype=np.int64), []
    for code in range(4):
        found = np.zeros(codes.shape, dtype=np.int32)
        count = cast(int, ndimage.label(codes == code, output=found))
        labels += np.where(codes == code, found - 1 + len(node_class), 0)
        node_class += [code] * count
    return labels, node_class


def _graph(labels: np.ndarray, node_class: list[int], rule: np.ndarray):
    import networkx

    main = labels[:-1, :-1], labels[1:, 1:]
    anti = labels[:-1, 1:], labels[1:, :-1]
    proper = [(labels[1:], labels[:-1]), (labels[:, 1:], labels[:, :-1])]
    proper += [tuple(side[rule == MAIN] for side in main)]
    proper += [tuple(side[rule == ANTI] for side in anti)]
    soft = [tuple(side[rule == SOFT_MAIN] for side in main)]
    soft += [tuple(side[rule == SOFT_ANTI] for side in anti)]
    graph = networkx.Graph()
    graph.add_nodes_from((node, {"code": code}) for node, code in enumerate(node_class))
    # Proper edges last: an edge that is both is proper.
    graph.add_edges_from(_edges(soft, len(node_class)), soft=True)
    graph.add_edges_from(_edges(proper, len(node_class)), soft=False)
    return graph


def _edges(pairs: list, count: int) -> np.ndarray:
    adjacent = np.zeros((count, count), dtype=bool)
    for heads, tails in pairs:
        adjacent[heads.ravel(), tails.ravel()] = True
    np.fill_diagonal(adjacent, False)
    return np.argwhere(adjacent)


def _contract(graph):
    """Nodes of one class on proper edges become one; and which nodes each then stands for."""
    import networkx

    alike = networkx.Graph()
    alike.add_nodes_from(graph)
    codes = graph.nodes(data="code")
    for u, v, soft in graph.edges(data="soft"):
        if not soft and codes[u] == codes[v] != TN:
            alike.add_edge(u, v)
    members = {}
    for group in list(networkx.connected_components(alike)):
        kept, *others = sorted(group)
        members[kept] = [kept, *others]
        for node in others:
            for neighbour, data in list(graph[node].items()):
                if neighbour in group:
                    continue
                known = graph.get_edge_data(kept, neighbour, {"soft": True})
                graph.add_edge(kept, neighbour, soft=known["soft"] and data["soft"])
            graph.remove_node(node)
    return graph, members


def _clusters(graph, bit: int) -> dict[int, int]:
    """Which nodes the prediction (bit 1) or the label (bit 2) connects."""
    import networkx

    codes = graph.nodes(data="code")
    within = networkx.Graph()
    within.add_nodes_from(graph)
    within.add_edges_from((u, v) for u, v in graph.edges if codes[u] & codes[v] & bit)
    groups = enumerate(networkx.connected_components(within))
    return {node: number for number, group in groups for node in group}


def _is_critical(graph, node: int, clusters: dict[int, dict[int, int]]) -> bool:
    codes = graph.nodes(data="code")
    if codes[node] not in (1, 2):
        return False
    counter = clusters[2 if codes[node] == FP else 1]
    near = [other for other, data in graph[node].items() if not data["soft"]]
    background = [other for other in near if codes[other] == TN]
    foreground = {counter[other] for other in near if codes[other] != TN}
    return len(background) != 1 or len(foreground) != 1
