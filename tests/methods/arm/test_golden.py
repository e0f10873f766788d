"""Equality with values of the official code (tests/golden/arm/README.md): float64, 1e-8."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ritornello.methods.arm import ARMForImageClassification, ARMForPretraining, MambaMixer
from ritornello.methods.arm.backbone import drop_path_rates
from ritornello.methods.arm.checkpoints import our_name
from ritornello.methods.arm.patches import (
    cluster_mask,
    cluster_order,
    interpolate_positions,
    normalize_patches,
    patchify,
    sincos_positions,
)
from ritornello.methods.arm.recipe import layer_decay_groups, learning_rate

EXACT = {"rtol": 1e-8, "atol": 1e-9}

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("causal", {"d_model": 8}),
        ("cross", {"d_model": 8, "directions": "cross", "cls_index": 13}),
        ("expand2", {"d_model": 8, "d_state": 4, "expand": 2}),
    ],
)
def test_mixer(case, options, golden, fill, official_grad_norms):
    arrays = golden("mixer")
    mixer = MambaMixer(**options)
    names = fill(mixer, arrays, case)
    x = arrays[f"{case}_x"].requires_grad_()
    y = mixer(x, grid=(5, 5) if case == "cross" else None)
    y.backward(arrays[f"{case}_dy"])
    torch.testing.assert_close(y, arrays[f"{case}_y"], **EXACT)
    torch.testing.assert_close(x.grad, arrays[f"{case}_grad_x"], **EXACT)
    expected = arrays[f"{case}_grad_norms"]
    torch.testing.assert_close(official_grad_norms(mixer, names), expected, **EXACT)


def test_float32_mixer(golden, fill):
    arrays = golden("mixer")
    mixer = MambaMixer(8, directions="cross", cls_index=13)
    fill(mixer, arrays, "cross")
    y = mixer.float()(arrays["cross_x"].float(), grid=(5, 5))
    torch.testing.assert_close(y, arrays["cross_y"].float(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("case", ["pre12", "pre24"])
def test_pretraining_model(case, golden, fill, official_grad_norms):
    arrays = golden("pretrain")
    seed, dim, decoder_dim, depth, patch, batch = arrays[f"{case}_cfg"].tolist()
    side = 12 * patch
    model = ARMForPretraining(side, patch, depth, dim, decoder_dim)
    names = fill(model, arrays, case)
    images = np.random.RandomState(seed).standard_normal((batch, 3, side, side))
    images = torch.from_numpy(images)
    output = model(images)
    output.loss.backward()
    torch.testing.assert_close(output.loss, arrays[f"{case}_loss"], **EXACT)
    torch.testing.assert_close(output.token_loss.mean(0), arrays[f"{case}_token_loss"], **EXACT)
    per_image = output.token_loss.mean(1)
    torch.testing.assert_close(per_image, arrays[f"{case}_loss_per_image"], **EXACT)
    shown = output.pred[:, [0, 15, 16, 127]]
    torch.testing.assert_close(shown, arrays[f"{case}_pred_first_last"], **EXACT)
    tokens = model.patch_embed(images) + model.pos_embed
    memory = model.memory(tokens[:, model.fixed_order[:-1].flatten()])
    shown = memory[:, [0, 5, 64, 127]]
    torch.testing.assert_close(shown, arrays[f"{case}_feat_tok0_5"], **EXACT)
    expected = arrays[f"{case}_grad_norms"]
    torch.testing.assert_close(official_grad_norms(model, names), expected, **EXACT)


@pytest.mark.parametrize("case", ["ft_pool", "ft_cls"])
def test_classifier(case, golden, fill, official_grad_norms):
    arrays = golden("finetune")
    seed, dim, depth, patch, grid, pool, classes, batch = arrays[f"{case}_cfg"].tolist()
    side = patch * grid
    model = ARMForImageClassification(side, patch, depth, dim, classes, "mean" if pool else "cls")
    names = fill(model, arrays, case)
    images = torch.from_numpy(np.random.RandomState(seed).standard_normal((batch, 3, side, side)))
    pooled = model.forward_head(model.forward_features(images), pre_logits=True)
    logits = model(images)
    loss = F.cross_entropy(logits, torch.arange(batch) % classes)
    loss.backward()
    torch.testing.assert_close(pooled, arrays[f"{case}_features"], **EXACT)
    torch.testing.assert_close(logits, arrays[f"{case}_logits"], **EXACT)
    torch.testing.assert_close(loss, arrays[f"{case}_loss"], **EXACT)
    expected = arrays[f"{case}_grad_norms"]
    torch.testing.assert_close(official_grad_norms(model, names), expected, **EXACT)


def test_tables(golden):
    arrays = golden("misc")
    for side, dim in ((12, 16), (3, 8)):
        table = sincos_positions((side, side), dim)
        torch.testing.assert_close(table, arrays[f"pos_{side}_{dim}"].double(), **EXACT)
    order = cluster_order((12, 12), 4)
    assert torch.equal(order, arrays["cluster_order_12"])
    assert torch.equal(cluster_mask(8, 16), arrays["mask_allowed"])
    rates = torch.tensor(drop_path_rates(0.1, 12))
    torch.testing.assert_close(rates, arrays["drop_paths_rate0.1_depth12"], **EXACT)
    patches = patchify(arrays["img"], 2)
    torch.testing.assert_close(patches, arrays["patchify"], **EXACT)
    torch.testing.assert_close(normalize_patches(patches), arrays["patchify_norm"], **EXACT)


def test_schedule_and_interpolation(golden):
    arrays = golden("misc")
    rates = [
        learning_rate(epoch, peak=1.2e-3, minimum=1e-6, warmup_epochs=40, epochs=1600)
        for epoch in arrays["lr_epochs"].tolist()
    ]
    torch.testing.assert_close(torch.tensor(rates), arrays["lr_values"], **EXACT)
    positions = interpolate_positions(arrays["interp_in"], (14, 14), cls_index=98)
    torch.testing.assert_close(positions, arrays["interp_out"], **EXACT)


def test_layer_decay(golden):
    arrays = golden("misc")
    model = ARMForImageClassification(32, 16, 12, 16, 10)
    groups = layer_decay_groups(model, lr=1.0, layer_decay=0.65)
    by_name = {name: group for group in groups for name in group["names"]}
    for official, scale, decays in zip(
        arrays["lrd_names"], arrays["lrd_scale_065"], arrays["lrd_decay"], strict=True
    ):
        group = by_name[our_name(str(official))[0]]
        torch.testing.assert_close(torch.tensor(group["lr_scale"]), scale, **EXACT)
        assert (group["weight_decay"] > 0) == bool(decays), official
