"""Persistence losses: barcodes equal gudhi's, matchings by hand, gradients, binary special case."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ritornello.methods.topograph import (
    BettiMatchingLoss,
    HuTopoLoss,
    MosinLoss,
    betti_errors,
)
from ritornello.methods.topograph.baselines import match_components, match_loops
from ritornello.methods.topograph.overlap import soft_skeleton
from ritornello.methods.topograph.persistence import merges


def field(seed, shape=(9, 12), levels=None):
    values = np.random.default_rng(seed).random(shape).astype(np.float32)
    return values if levels is None else np.round(values * levels) / np.float32(levels)


@pytest.mark.parametrize("levels", [None, 4])
@pytest.mark.parametrize("seed", range(4))
def test_barcodes_equal_gudhis(seed, levels):
    gudhi = pytest.importorskip("gudhi")
    values = field(seed, levels=levels)
    complex_ = gudhi.CubicalComplex(top_dimensional_cells=values)
    complex_.compute_persistence()
    for dimension, match in enumerate((match_components, match_loops)):
        own, _, _ = match(values, field(99))
        expected = complex_.persistence_intervals_in_dimension(dimension)
        expected = expected[np.isfinite(expected[:, 1])]
        assert sorted(map(tuple, values.ravel()[own].T)) == sorted(map(tuple, expected))


@pytest.mark.parametrize("connectivity", [4, 8])
def test_compiled_merges_equal_the_plain_loop(connectivity):
    for seed in range(4):
        fields = [field(seed, levels=5), field(seed + 50)]
        compiled = merges(fields[0], fields, connectivity, "compiled")
        plain = merges(fields[0], fields, connectivity, "python")
        assert all(np.array_equal(a, b) for a, b in zip(compiled, plain, strict=True))


def test_matching_of_binary_images_is_the_betti_matching_error(draw):
    preds, gts = draw(40, 10, 12, changed=1.5)
    compared = 0
    for pred, gt in zip(preds, gts, strict=True):
        if not pred.any() or not gt.any() or pred.all() or gt.all():
            continue
        filtrations = [1 - x.numpy().astype(np.float32) for x in (pred, gt)]
        unmatched = 0
        for match in (match_components, match_loops):
            own, others, partner = match(*filtrations)
            unmatched += own.shape[1] + others.shape[1] - 2 * int((partner >= 0).sum())
        # The component that never ends is paired across both filtrations, wherever it lies; in
        # masks it counts as matched only if both oldest components overlap.
        assert abs(unmatched - int(betti_errors(pred, gt).matching)) <= 2
        compared += unmatched > 0
    assert compared > 20


def test_components_match_by_place_and_birth():
    """Two basins: at the left of both, at the right of the first; the second has one in between."""
    first = np.array([[0.1, 0.9, 0.9, 0.9, 0.2]], dtype=np.float32)
    second = np.array([[0.0, 1.0, 0.5, 1.0, 1.0]], dtype=np.float32)
    own, others, partner = match_components(first, second)
    assert own.tolist() == [[4], [3]]  # born at pixel 4, merged at pixel 3
    assert others.tolist() == [[2], [1]]  # born at pixel 2, merged at pixel 1
    assert partner.tolist() == [-1]
    own, others, partner = match_components(first, first)
    assert partner.tolist() == [0]


def test_loops_match_when_they_share_their_inside():
    ring = np.ones((7, 7), dtype=np.float32)
    ring[1:6, 1:6] = 0
    ring[2:5, 2:5] = 1
    own, _, partner = match_loops(ring, ring)
    assert own.shape == (2, 1)
    assert partner.tolist() == [0]
    shifted = np.ones((7, 20), dtype=np.float32)
    shifted[:, :7] = ring
    far = np.ones((7, 20), dtype=np.float32)
    far[:, 10:17] = ring
    assert match_loops(shifted, far)[2].tolist() == [-1]


@pytest.mark.parametrize("loss", [HuTopoLoss(), BettiMatchingLoss()])
def test_a_perfect_prediction_costs_nothing_and_gradients_are_true(loss, draw, generator):
    if isinstance(loss, HuTopoLoss):
        pytest.importorskip("gudhi")
    _, gt = draw(2, 12, 12)
    target = gt.long()
    sharp = 60 * torch.stack([~gt, gt], 1).double()
    assert loss(sharp, target) < 1e-6
    logits = torch.randn(2, 2, 5, 6, generator=generator, dtype=torch.float64)
    small = logits.requires_grad_()
    goal = gt[:, :5, :6].long()
    value = loss(small, goal)
    (gradient,) = torch.autograd.grad(value, small)
    step = 1e-3 * gradient / gradient.norm()
    change = loss(small + step, goal) - loss(small - step, goal)
    torch.testing.assert_close(change.item(), 2e-3 * gradient.norm().item(), rtol=0.02, atol=1e-6)
    assert value > 0.1


def test_a_false_component_costs_both():
    target = torch.zeros(1, 9, 9, dtype=torch.long)
    target[0, 2:7, 1:4] = 1
    margin = torch.where(target == 1, 5.0, -5.0)
    wrong = margin.clone()
    wrong[0, 4, 7] = 5.0
    pytest.importorskip("gudhi")
    for loss in (HuTopoLoss(), BettiMatchingLoss()):
        clean, false = (loss(torch.stack([-x, x], 1), target) for x in (margin, wrong))
        assert clean < 1e-3
        assert 0.4 < false < 0.6  # one feature of length 1: 1/2


def test_skeleton_of_a_bar_is_its_middle_line():
    bar = torch.zeros(1, 1, 11, 20)
    bar[0, 0, 3:8, 3:17] = 1
    skeleton = soft_skeleton(bar, 5)[0, 0]
    assert skeleton[5, 6:14].eq(1).all()
    assert skeleton[[3, 4, 6, 7], 7:13].eq(0).all()


@pytest.fixture(scope="module")
def vgg(tmp_path_factory):
    """Random weights of VGG19's first layers under torchvision's names, and a file of them."""
    generator = torch.Generator().manual_seed(0)
    sizes = {0: (3, 64), 2: (64, 64), 5: (64, 128), 7: (128, 128), 10: (128, 256)}
    sizes |= dict.fromkeys((12, 14, 16), (256, 256))
    weights = {}
    for layer, (inputs, outputs) in sizes.items():
        kernel = torch.randn(outputs, inputs, 3, 3, generator=generator)
        weights[f"features.{layer}.weight"] = kernel * (2 / (9 * inputs)) ** 0.5
        weights[f"features.{layer}.bias"] = torch.randn(outputs, generator=generator) / 10
    file = tmp_path_factory.mktemp("vgg") / "vgg19.pth"
    torch.save(weights | {"classifier.0.bias": torch.zeros(3)}, file)
    return weights, str(file)


def test_mosin_compares_features_of_three_layers_written_out(vgg):
    weights, file = vgg
    logits = torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    target = torch.randint(3, (2, 9, 8), generator=torch.Generator().manual_seed(2))

    def features(mask):
        x = mask.expand(1, 3, -1, -1)
        x = (x - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor(
            [0.229, 0.224, 0.225]
        )[:, None, None]
        for layer in (0, 2, "pool", 5, 7, "pool", 10, 12, 14, 16):
            if layer == "pool":
                x = F.max_pool2d(x, 2)
                continue
            kernel, bias = (weights[f"features.{layer}.{kind}"] for kind in ("weight", "bias"))
            x = F.conv2d(x, kernel, bias, padding=1).relu()
            if layer in (2, 7, 16):
                yield x

    for background in (False, True):
        terms = []
        for image, labels in zip(logits.softmax(1), target, strict=True):
            for k in range(0 if background else 1, 3):
                pairs = zip(features(image[k]), features((labels == k).float()), strict=True)
                terms.append(sum((x - y).square().mean() for x, y in pairs))
        loss = MosinLoss(include_background=background, weights=file)(logits, target)
        torch.testing.assert_close(loss, torch.stack(terms).mean())
    loss.backward()
    assert logits.grad.abs().sum() > 0
    right = F.one_hot(target, 3).movedim(-1, 1).float()
    assert float(MosinLoss(softmax=False, weights=file)(right, right.long())) == 0


def test_mosin_says_what_it_cannot_take(vgg, tmp_path):
    logits, target = torch.zeros(1, 2, 8, 3), torch.zeros(1, 8, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="at least 4 pixels"):
        MosinLoss(weights=vgg[1])(logits, target)
    logits, target = torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="no such file"):
        MosinLoss(weights=str(tmp_path / "none.pth"))(logits, target)
    torch.save({"features.0.weight": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match="not those of a VGG19"):
        MosinLoss(weights=str(tmp_path / "other.pth"))(logits, target)
