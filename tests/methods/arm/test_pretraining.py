"""Clusters, causality and targets of pretraining; the masked baseline."""

import pytest
import torch

from ritornello.methods.arm import ARMForPretraining, MAEForPretraining
from ritornello.methods.arm.backbone import drop_path, tap_layers
from ritornello.methods.arm.mixer import scan_orders
from ritornello.methods.arm.patches import (
    ORDERS,
    cluster_mask,
    cluster_order,
    interpolate_positions,
    normalize_patches,
    patchify,
    sincos_positions,
    unpatchify,
)

TINY = {"image_size": 12, "patch_size": 2, "depth": 2, "dim": 16, "decoder_dim": 16, "d_state": 4}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("grid", "cluster_size"), [((12, 12), 4), ((4, 6), 2), ((3, 2), 1)])
def test_every_order_is_a_permutation_of_the_patches(order, grid, cluster_size, generator):
    clusters = cluster_order(grid, cluster_size, order, generator)
    assert clusters.shape[1] == cluster_size**2
    assert clusters.flatten().sort()[0].tolist() == list(range(grid[0] * grid[1]))


def test_clusters_of_a_small_grid_by_hand():
    # 4 x 4 patches, clusters of 2 x 2: the first holds patches 0 1 4 5
    rows = cluster_order((4, 4), 2)
    assert rows.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert cluster_order((4, 4), 2, "column")[1].tolist() == [8, 9, 12, 13]
    assert torch.equal(cluster_order((4, 4), 2, "row_reverse"), rows.flip(0))
    # two predicted clusters of two patches: the first sees cluster 0, the second 0 and 1
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert cluster_mask(2, 2).int().tolist() == expected


def test_patches_and_back(generator):
    images = torch.randn(2, 3, 4, 6, generator=generator)
    patches = patchify(images, 2)
    assert patches.shape == (2, 6, 12)
    # second patch of the first row: rows 0-1, columns 2-3, colours fastest
    assert torch.equal(patches[0, 1, :3], images[0, :, 0, 2])
    assert torch.equal(unpatchify(patches, 2, (2, 3)), images)


def test_constant_patches_become_zero_and_single_values_are_refused():
    assert torch.equal(normalize_patches(torch.ones(1, 2, 12)), torch.zeros(1, 2, 12))
    with pytest.raises(ValueError, match='use "pixels"'):
        normalize_patches(torch.ones(1, 2, 1))


def test_positions_put_the_column_first():
    table = sincos_positions((2, 3), 8)
    # token 2 stands in row 0, column 2; token 3 in row 1, column 0
    torch.testing.assert_close(table[2, 0], torch.tensor(2.0).sin())
    torch.testing.assert_close(table[2, 4:6], torch.zeros(2))
    torch.testing.assert_close(table[3, 4], torch.tensor(1.0).sin())
    with pytest.raises(ValueError, match="multiple of 4"):
        sincos_positions((2, 2), 6)


def test_positions_of_the_same_grid_only_gain_a_zero_row(generator):
    positions = torch.randn(1, 16, 8, generator=generator)
    longer = interpolate_positions(positions, (4, 4), 8)
    assert torch.equal(longer[:, [*range(8), *range(9, 17)]], positions)
    assert not longer[:, 8].any()


@pytest.mark.parametrize("order", ["row", "column", "row_reverse"])
def test_predictions_do_not_depend_on_clusters_to_come(order, generator):
    model = ARMForPretraining(**TINY, cluster_size=2, order=order)
    images = torch.randn(1, 3, 12, 12, generator=generator)
    before = model(images).pred.unflatten(1, (8, 4))
    known = 5  # clusters 0..4 stay; prediction number i is of cluster i + 1, from clusters 0..i
    patches = patchify(images, 2)
    patches[:, model.fixed_order[known:].flatten()] += 1
    after = model(unpatchify(patches, 2, (6, 6))).pred.unflatten(1, (8, 4))
    torch.testing.assert_close(before[:, :known], after[:, :known], rtol=0, atol=0)
    assert (before[:, known:] - after[:, known:]).abs().amin() > 0


def test_last_cluster_is_a_target_only(generator):
    model = ARMForPretraining(**TINY, cluster_size=2)
    images = torch.randn(2, 3, 12, 12, generator=generator, requires_grad=True)
    model(images).pred.sum().backward()
    gradient = patchify(images.grad, 2)
    assert not gradient[:, model.fixed_order[-1]].any()
    assert gradient[:, model.fixed_order[0]].abs().sum() > 0


def test_random_order_follows_the_generator(generator):
    model = ARMForPretraining(**TINY, cluster_size=2, order="random")
    images = torch.randn(1, 3, 12, 12)
    first = model(images, torch.Generator().manual_seed(1))
    again = model(images, torch.Generator().manual_seed(1))
    other = model(images, torch.Generator().manual_seed(2))
    assert torch.equal(first.patches, again.patches)
    assert torch.equal(first.loss, again.loss)
    assert not torch.equal(first.patches, other.patches)


def test_loss_is_the_mean_over_all_predicted_values(generator):
    model = ARMForPretraining(**TINY, cluster_size=3, target="pixels")
    images = torch.randn(2, 3, 12, 12, generator=generator)
    output = model(images)
    expected = (output.pred - patchify(images, 2)[:, output.patches]).square().mean()
    torch.testing.assert_close(output.loss, expected)
    assert output.token_loss.shape == (2, 27)


def test_masked_model_predicts_each_hidden_patch_from_the_visible_ones(generator):
    model = MAEForPretraining(**TINY, mask_ratio=0.75)
    images = torch.randn(2, 3, 12, 12, generator=generator)
    seeded = torch.Generator().manual_seed(3)
    output = model(images, seeded)
    assert output.patches.shape == (2, 27)  # 36 patches, 9 visible
    assert all(len(set(row)) == 27 for row in output.patches.tolist())
    patches = patchify(images, 2)
    patches = patches.scatter(1, output.patches[..., None].expand(-1, -1, 12), 0.0)
    blanked = model(unpatchify(patches, 2, (6, 6)), torch.Generator().manual_seed(3))
    assert torch.equal(blanked.pred, output.pred)


def test_visible_patches_keep_the_order_of_every_direction():
    model = MAEForPretraining(**TINY | {"image_size": 6}, mask_ratio=0.5)
    # 3 x 3 grid: shown 1 3 5 8 as tokens 0..3; columns read 3, 1, 5, 8
    orders = model._visible_orders(torch.tensor([[1, 3, 5, 8]]))
    assert orders[0].tolist() == [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 2, 3], [3, 2, 0, 1]]
    everything = model._visible_orders(torch.arange(9)[None])
    assert torch.equal(everything[0], scan_orders("cross", (3, 3)))


def test_drop_path_keeps_the_expectation():
    torch.manual_seed(0)
    dropped = drop_path(torch.ones(20_000, 2), 0.25, training=True)
    assert dropped.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    assert abs(dropped.mean() - 1) < 0.02
    assert torch.equal(dropped[:, 0], dropped[:, 1])


def test_tapped_layers():
    assert tap_layers(12) == (6, 8, 10, 12)
    assert tap_layers(24) == (12, 16, 20, 24)
    assert tap_layers(8) == (2, 4, 6, 8)
    assert tap_layers(2) == (1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster_size": 4}, "cluster_size must divide"),
        ({"cluster_size": 6}, "single cluster"),
        ({"patch_size": 5}, "patch_size must divide"),
        ({"order": "spiral", "cluster_size": 2}, "order must be one of"),
        ({"target": "tokens", "cluster_size": 2}, "target must be"),
        ({"decoder_heads": 3, "cluster_size": 2}, "multiple of decoder_heads"),
        ({"taps": (2, 1), "cluster_size": 2}, "taps must be"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ARMForPretraining(**TINY | options)


def test_bad_images_and_masks_are_named():
    model = ARMForPretraining(**TINY, cluster_size=2)
    with pytest.raises(ValueError, match=r"images must be"):
        model(torch.zeros(1, 3, 12, 14))
    with pytest.raises(ValueError, match="mask_ratio"):
        MAEForPretraining(**TINY, mask_ratio=1.0)
