"""The published count of errors, an approximation of ξ: for comparison with published tables."""

from jaxtyping import Bool
from torch import Tensor

from ritornello.methods.topograph.codes import FP, Connectivity
from ritornello.methods.topograph.graph import component_graph, is_wrong, neighbour_keys


def published_count(
    pred: Bool[Tensor, "height width"],
    gt: Bool[Tensor, "height width"],
    connectivity: Connectivity = 8,
    pad: bool = False,
) -> int:
    """Missing and surplus neighbours of the wrong regions, as the published tables count them.

    A region without a true-negative neighbour, or without a counter-cluster, counts one each; one
    with n > 1 of a kind counts n minus those that regions of its own class have met before, at
    least one. The order of the regions therefore matters: use `diu`, which is exact.

    Raises:
        ValueError: as `component_graph`.
    """
    graph = component_graph(pred, gt, connectivity, pad)
    touched: dict[tuple[int, bool], set[int]] = {}
    wrong = is_wrong(graph.node_class).nonzero()[:, 0]
    kinds = dict(
        zip(graph.contracted[wrong].tolist(), (graph.node_class[wrong] == FP).tolist(), strict=True)
    )
    for region, key, background in zip(*(x.tolist() for x in neighbour_keys(graph)), strict=True):
        touched.setdefault((region, background), set()).add(key)
    met: set[tuple[bool, bool, int]] = set()
    errors = 0
    for region, positive in kinds.items():
        for background in (True, False):
            keys = {(positive, background, k) for k in touched.get((region, background), ())}
            errors += 1 if not keys else len(keys) - max(len(keys & met), 1)
            if len(keys) > 1:
                met |= keys
    return errors
