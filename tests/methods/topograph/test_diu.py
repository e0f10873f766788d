"""DIU: hand-made cases, symmetries, and what an empty critical set promises."""

import pytest
import torch
from scipy import ndimage

from ritornello.methods.topograph import (
    DIU,
    betti_errors,
    component_graph,
    critical_regions,
    diu,
)

LEFT, RIGHT = (5, 10, 2, 5), (5, 10, 10, 13)
EIGHT, CROSS = torch.ones(3, 3), ndimage.generate_binary_structure(2, 1)


def parts(found):
    return [int(x) for x in (found.ker_fg, found.coker_fg, found.ker_bg, found.coker_bg)]


def test_a_bridge_merges_two_components(canvas):
    blobs, bridged = canvas(LEFT, RIGHT), canvas(LEFT, RIGHT, (7, 8, 5, 10))
    assert parts(diu(bridged, blobs)) == [1, 0, 0, 0]
    assert parts(diu(blobs, bridged)) == [1, 0, 0, 0]


def test_two_bridges_also_enclose_a_hole(canvas):
    blobs = canvas(LEFT, RIGHT)
    twice = canvas(LEFT, RIGHT, (5, 6, 5, 10), (9, 10, 5, 10))
    assert parts(diu(twice, blobs)) == [1, 0, 1, 0]


def test_a_cut_ring_joins_inside_and_outside(canvas):
    ring = canvas((3, 12, 3, 12)) & ~canvas((5, 10, 5, 10))
    assert parts(diu(ring & ~canvas((6, 8, 10, 12)), ring)) == [0, 0, 1, 0]


def test_a_missing_blob_and_a_missing_hole(canvas):
    assert parts(diu(canvas(), canvas(LEFT))) == [0, 1, 0, 0]
    assert parts(diu(canvas((5, 10, 2, 13)), canvas(LEFT))) == [0, 0, 0, 0]
    holed = canvas((3, 12, 3, 12)) & ~canvas((6, 8, 6, 8))
    assert parts(diu(canvas((3, 12, 3, 12)), holed)) == [0, 0, 0, 1]


def test_a_shift_of_a_blob_is_no_error(canvas):
    assert diu(canvas((4, 10, 4, 10)), canvas((5, 11, 5, 11))).total == 0
    assert critical_regions(canvas((4, 10, 4, 10)), canvas((5, 11, 5, 11)))[1] == 0


def test_the_corner_belongs_to_the_foreground_or_not(canvas):
    touching = canvas((3, 6, 3, 6), (6, 9, 6, 9))
    bridged = canvas((3, 6, 3, 6), (6, 9, 6, 9), (5, 7, 5, 7))
    assert diu(touching, bridged, connectivity=8).total == 0
    assert diu(touching, bridged, connectivity=4).total == 1


@pytest.mark.parametrize("connectivity", [4, 8])
@pytest.mark.parametrize("boundary", ["free", "padded"])
def test_symmetries(draw, connectivity, boundary):
    pred, gt = draw(30, 12, 12, changed=1.0)

    def total(p, g):
        return diu(p, g, connectivity, boundary).total

    expected = total(pred, gt)
    assert expected.sum() > 50
    assert torch.equal(total(gt, pred), expected)
    assert torch.equal(total(pred.flip(1), gt.flip(1)), expected)
    assert torch.equal(total(pred.rot90(1, (1, 2)), gt.rot90(1, (1, 2))), expected)
    assert torch.equal(total(pred.mT, gt.mT), expected)
    for index in range(3):  # a batch is its images
        assert total(pred[index], gt[index]) == expected[index]
    assert torch.equal(total(pred, pred), torch.zeros(30, dtype=torch.int64))


def test_duality_of_connectivities(draw):
    pred, gt = draw(30, 11, 13, changed=1.0)
    free = diu(pred, gt, 8, "free")
    dual = diu(~pred, ~gt, 4, "free")
    assert torch.equal(free.total, dual.total)
    assert torch.equal(free.ker_fg, dual.ker_bg)


@pytest.mark.parametrize("scale", [2, 3])
def test_upsampling_changes_nothing(draw, scale):
    pred, gt = draw(20, 9, 9, changed=1.0)
    big = [x.repeat_interleave(scale, 1).repeat_interleave(scale, 2) for x in (pred, gt)]
    assert torch.equal(diu(*big).total, diu(pred, gt).total)
    assert critical_regions(*big)[1] == critical_regions(pred, gt)[1]


@pytest.mark.parametrize("connectivity", [4, 8])
def test_no_critical_region_means_no_error(draw, connectivity):
    """The guarantee, on thousands of pairs of which many have errors of place alone."""
    clean = wrong_but_clean = 0
    for size, changed in ((5, 0.6), (6, 0.4), (7, 0.4), (12, 0.15), (20, 0.08)):
        pred, gt = draw(1000, size, size, changed=changed)
        regions, _ = critical_regions(pred, gt, connectivity=connectivity)
        empty = (regions < 0).flatten(1).all(1)
        total = diu(pred, gt, connectivity).total
        assert (total[empty] == 0).all()
        clean += int(empty.sum())
        wrong_but_clean += int((empty & (pred != gt).flatten(1).any(1)).sum())
        assert (total > 0).sum() > 50
    assert clean > 500
    assert wrong_but_clean > 200


def test_without_padding_a_bridge_along_the_border_is_missed(canvas):
    """A cup whose opening is the border, and the lid on it."""
    cup = canvas((0, 8, 2, 4), (0, 8, 10, 12), (6, 8, 2, 12))
    lidded = cup | canvas((0, 1, 4, 10))
    assert parts(diu(lidded, cup)) == [0, 0, 1, 0]
    assert critical_regions(lidded, cup, pad=True)[1] == 1
    assert critical_regions(lidded, cup, pad=False)[1] == 0


def test_clusters_are_the_masks_components(draw):
    """Every mask's clusters are its 8-connected components, as scipy labels them."""
    preds, gts = draw(10, 14, 14, changed=1.0)
    for pred, gt in zip(preds, gts, strict=True):
        graph = component_graph(pred, gt, pad=False)
        for mask, clusters in ((pred, graph.pred_cluster), (gt, graph.gt_cluster)):
            labels, count = ndimage.label(mask.numpy(), EIGHT)
            own = clusters[graph.labels][mask]
            pairs = torch.stack([own, torch.from_numpy(labels)[mask].long()]).unique(dim=1)
            assert pairs.shape[1] == count == len(own.unique())


def test_graph_of_two_touching_errors():
    """Columns: label only, both, prediction only, nothing."""
    gt = torch.tensor([[1, 1, 0, 0]] * 2)
    pred = torch.tensor([[0, 1, 1, 0]] * 2)
    graph = component_graph(pred, gt, pad=False)
    order = graph.labels[0]
    assert graph.node_class[order].tolist() == [2, 3, 1, 0]
    wanted = {tuple(sorted(order[[i, i + 1]].tolist())) for i in range(3)}
    assert set(map(tuple, graph.edges.T.tolist())) == wanted
    assert graph.soft_edges.shape == (2, 0)
    same = graph.gt_cluster[order]
    assert same[0] == same[1] != same[2]


def test_betti_errors_and_matching(canvas):
    near, far = canvas((2, 5, 2, 5)), canvas((9, 12, 9, 12))
    found = betti_errors(near, far)
    # One component each, in different places: the Betti numbers agree, nothing matches.
    assert [int(x) for x in (found.betti_0, found.betti_1, found.matching)] == [0, 0, 2]
    ring = canvas((3, 12, 3, 12)) & ~canvas((5, 10, 5, 10))
    found = betti_errors(torch.stack([ring, ring]), torch.stack([ring, canvas((3, 12, 3, 12))]))
    assert found.betti_1.tolist() == [0, 1]
    assert found.matching.tolist() == [0, 1]


def test_matching_error_lies_between_betti_error_and_twice_diu(draw):
    pred, gt = draw(200, 10, 10, changed=1.0)
    errors, strict = betti_errors(pred, gt), diu(pred, gt).total
    assert (errors.matching >= errors.betti_0 + errors.betti_1).all()
    assert (errors.matching[strict == 0] == 0).all()
    assert (errors.matching > 0).any()


def test_metric_adds_classes_and_averages_images(draw):
    pred, gt = draw(6, 10, 10, changed=1.0)
    metric = DIU(num_classes=2)
    metric.update(pred[:2].long(), gt[:2].long())
    one_hot = torch.stack([~gt[2:], gt[2:]], 1)
    metric.update(torch.stack([~pred[2:], pred[2:]], 1).float(), one_hot)
    expected = diu(pred, gt).total
    assert metric.compute() == expected.float().mean()
    both = DIU(num_classes=2, include_background=True)
    both.update(pred.long(), gt.long())
    assert both.compute() == (expected + diu(~pred, ~gt).total).float().mean()
    ignoring = DIU(num_classes=2, ignore_index=7)
    ignoring.update(pred.long(), gt.long().masked_fill(pred != gt, 7))
    assert ignoring.compute() == diu(pred & gt, pred & gt).total.float().mean() == 0
