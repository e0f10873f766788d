"""The component graph of a prediction and a label (sec. 3), on tensors of any device."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from ritornello.methods.topograph.codes import (
    ANTI,
    FN,
    FP,
    MAIN,
    SOFT_ANTI,
    SOFT_MAIN,
    TN,
    Connectivity,
    block_rule,
    check_connectivity,
    check_masks,
    combine,
)
from ritornello.methods.topograph.components import (
    LabelBackend,
    graph_components,
    label_components,
)


@dataclass(frozen=True)
class ComponentGraph:
    """Nodes are components of the four-class image; edges say which of them touch.

    With connectivity 4 the graph is that of the complements: there a node of class 0 is a pixel
    that both masks have, one of class 1 is missing from the prediction, one of class 2 is too much.

    Attributes:
        labels: node of each pixel, without the ring of background that `pad` adds.
        node_class: code p + 2 g of each node: 0 true negative, 1 false positive, 2 false negative,
            3 true positive.
        edges: pairs of adjacent nodes, each once, the lower one first.
        soft_edges: pairs that are connected within one mask without being adjacent.
        contracted: a number shared by the nodes that diagonal contact makes one region.
        pred_cluster, gt_cluster: a number shared by the nodes that the prediction (the label)
            connects.
    """

    labels: Int[Tensor, "height width"]
    node_class: UInt8[Tensor, "nodes"]
    edges: Int[Tensor, "2 edges"]
    soft_edges: Int[Tensor, "2 soft_edges"]
    contracted: Int[Tensor, "nodes"]
    pred_cluster: Int[Tensor, "nodes"]
    gt_cluster: Int[Tensor, "nodes"]


def component_graph(
    pred: Bool[Tensor, "height width"],
    gt: Bool[Tensor, "height width"],
    connectivity: Connectivity = 8,
    pad: bool = True,
) -> ComponentGraph:
    """The component graph of two masks of one image.

    Args:
        pred, gt: masks, bool or 0 and 1.
        connectivity: of the foreground; the background has the other one.
        pad: put a ring of background around the image, so that the plane around it counts.

    Raises:
        ValueError: masks that do not fit or are not binary, connectivity other than 4 or 8.
    """
    check_connectivity(connectivity)
    pred, gt = check_masks(pred, gt)
    if pred.ndim != 2:
        raise ValueError(f"pred must be one image (height, width), got {tuple(pred.shape)}")
    ring = int(pad)
    graph = build_graph(combine(pred[None], gt[None], connectivity, pad), "auto")
    height, width = pred.shape
    return ComponentGraph(
        labels=graph.labels[0, ring : ring + height, ring : ring + width],
        node_class=graph.node_class,
        edges=_distinct(graph.edges),
        soft_edges=_distinct(graph.soft_edges),
        contracted=graph.contracted,
        pred_cluster=graph.pred_cluster,
        gt_cluster=graph.gt_cluster,
    )


def build_graph(
    codes: UInt8[Tensor, "images height width"], backend: LabelBackend
) -> ComponentGraph:
    """One graph of all images, which share no node; labels (images, ...), edges repeated."""
    labels, num_nodes = label_components(codes, backend)
    node_class = codes.new_empty(num_nodes)
    node_class[labels.flatten()] = codes.flatten()
    touching = torch.cat(
        [
            _pairs(labels[:, :, :-1], labels[:, :, 1:], codes[:, :, :-1] != codes[:, :, 1:]),
            _pairs(labels[:, :-1], labels[:, 1:], codes[:, :-1] != codes[:, 1:]),
        ],
        dim=1,
    )
    rule = block_rule(codes)
    corners = (labels[:, :-1, :-1], labels[:, 1:, 1:]), (labels[:, :-1, 1:], labels[:, 1:, :-1])
    proper = torch.cat([_pairs(*corners[0], rule == MAIN), _pairs(*corners[1], rule == ANTI)], 1)
    soft = torch.cat(
        [_pairs(*corners[0], rule == SOFT_MAIN), _pairs(*corners[1], rule == SOFT_ANTI)], 1
    )
    proper, soft = proper[:, proper[0] != proper[1]], soft[:, soft[0] != soft[1]]
    edges = torch.cat([touching, proper], 1)
    by_scipy = codes.device.type == "cpu" and backend != "torch"

    def components(chosen: Tensor) -> Tensor:
        return graph_components(chosen, num_nodes, by_scipy=by_scipy)

    everything = torch.cat([edges, soft], 1)
    first, second = node_class[everything]
    same = node_class[proper]
    alike = (same[0] == same[1]) & (same[0] != TN)
    return ComponentGraph(
        labels=labels,
        node_class=node_class,
        edges=edges,
        soft_edges=soft,
        contracted=components(proper[:, alike]),
        pred_cluster=components(everything[:, (first & second & 1) != 0]),
        gt_cluster=components(everything[:, (first & second & 2) != 0]),
    )


def _pairs(heads: Tensor, tails: Tensor, where: Bool[Tensor, "..."]) -> Int[Tensor, "2 pairs"]:
    places = where.nonzero(as_tuple=True)
    return torch.stack([heads[places], tails[places]])


def _distinct(edges: Tensor) -> Tensor:
    return edges.sort(dim=0).values.unique(dim=1)


def is_wrong(node_class: Tensor) -> Bool[Tensor, "..."]:
    """Whether a code is that of a false positive or a false negative."""
    return (node_class == FP) | (node_class == FN)


def neighbour_keys(graph: ComponentGraph) -> tuple[Tensor, Tensor, Bool[Tensor, "pairs"]]:
    """What each wrong region touches.

    Returns:
        For every contact: the region's number in `contracted`; the key of what it touches (a true
        negative's node, else the cluster that the region's own mask does not decide: the label's
        for a false positive, the prediction's for a false negative); whether that is a true
        negative.
    """
    node, neighbour = torch.cat([graph.edges, graph.edges.flip(0)], 1)
    own, other = graph.node_class[node], graph.node_class[neighbour]
    contact = is_wrong(own) & (own != other)
    node, neighbour, own, other = (x[contact] for x in (node, neighbour, own, other))
    counter = torch.where(own == FP, graph.gt_cluster[neighbour], graph.pred_cluster[neighbour])
    background = other == TN
    return graph.contracted[node], torch.where(background, neighbour, counter), background


def critical_nodes(graph: ComponentGraph) -> Bool[Tensor, "nodes"]:
    """Whether a node is critical: wrong, and not regular (definition of critical regions, sec. 3).

    A regular region touches exactly one true-negative node and exactly one counter-cluster: the
    least and the greatest key of what it touches are the same.
    """
    count = len(graph.node_class)
    region, key, background = neighbour_keys(graph)
    regular = torch.ones(count, dtype=torch.bool, device=key.device)
    for kind in (background, ~background):
        at, touched = region[kind], key[kind]
        least = touched.new_full((count,), count).scatter_reduce(0, at, touched, "amin")
        greatest = touched.new_full((count,), -1).scatter_reduce(0, at, touched, "amax")
        regular &= least == greatest
    return is_wrong(graph.node_class) & ~regular[graph.contracted]
