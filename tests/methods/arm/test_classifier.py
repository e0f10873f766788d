"""The fine-tuning model: conversion, timm's interface, recipes."""

from argparse import Namespace

import pytest
import torch
from torch.nn import functional as F

from ritornello.methods.arm import (
    ARMForImageClassification,
    ARMForPretraining,
    convert_pretrained,
    load_official_checkpoint,
    patch_transformers_mamba,
)
from ritornello.methods.arm.checkpoints import initialize_from
from ritornello.methods.arm.recipe import layer_decay_groups

SIZES = {"patch_size": 2, "depth": 2, "dim": 16, "d_state": 4}


def pretrained():
    torch.manual_seed(0)
    return ARMForPretraining(8, decoder_dim=16, decoder_depth=1, cluster_size=2, **SIZES)


def classifier(image_size=8, **options):
    torch.manual_seed(1)
    return ARMForImageClassification(image_size, num_classes=5, **SIZES, **options)


@pytest.mark.parametrize(
    ("depth", "dim", "parameters"),
    [(12, 768, 85_031_656), (24, 1024, 297_035_720), (24, 1536, 662_682_088)],
)
def test_parameter_counts_are_the_papers(depth, dim, parameters):
    with torch.device("meta"):
        model = ARMForImageClassification(depth=depth, dim=dim)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_one_direction_is_copied_into_four():
    source = pretrained()
    model = initialize_from(classifier(image_size=12), source.state_dict())
    for block, original in zip(model.blocks, source.blocks, strict=True):
        for direction in range(4):
            assert torch.equal(block.mixer.A_log[direction], original.mixer.A_log[0])
            assert torch.equal(block.mixer.x_proj[direction], original.mixer.x_proj[0])
        assert torch.equal(block.mixer.in_proj.weight, original.mixer.in_proj.weight)
    assert not model.pos_embed[0, model.cls_index].any()
    assert model.head.weight.abs().max() < 1e-3
    model.load_state_dict(initialize_from(model, model.state_dict()).state_dict())


def test_same_grid_keeps_the_pretrained_encoder(generator):
    """One direction, class token out of the way at the end of a row: same tokens before it."""
    source, model = pretrained(), classifier(directions="causal")
    initialize_from(model, source.state_dict())
    images = torch.randn(2, 3, 8, 8, generator=generator)
    tokens = source.patch_embed(images) + source.pos_embed
    for block in source.blocks:
        tokens = block(tokens)
    model.norm = torch.nn.Identity()
    found = model.forward_features(images)
    torch.testing.assert_close(found[:, : model.cls_index], tokens[:, : model.cls_index])


def test_checkpoint_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="does not fit"):
        convert_pretrained(pretrained().state_dict(), ARMForImageClassification(8, 2, 3, 16, 5))


def test_official_file_loads_with_its_prefixes(tmp_path):
    model = classifier()
    names = {"blocks.": "layers.", "norm.weight": "norm_f.weight", "norm.bias": "norm_f.bias"}
    suffixes = {"": 0, "_b": 1, "_c": 2, "_c_b": 3}
    official = {}
    for name, value in model.state_dict().items():
        path, _, own = name.rpartition("mixer.")
        stacked = {
            "conv_weight": "conv1d{}.weight",
            "conv_bias": "conv1d{}.bias",
            "x_proj": "x_proj{}.weight",
            "dt_weight": "dt_proj{}.weight",
            "dt_bias": "dt_proj{}.bias",
            "A_log": "A{}_log",
            "D": "D{}",
        }
        path = path.replace("blocks.", "layers.")
        if own in stacked and path:
            for suffix, i in suffixes.items():
                part = value[i][:, None] if own == "conv_weight" else value[i]
                official[f"{path}mixer.{stacked[own].format(suffix)}"] = part.clone()
        else:
            for ours, theirs in names.items():
                name = name.replace(ours, theirs) if name.startswith(ours) else name
            official[name] = value
    file = tmp_path / "arm.pth"
    beside = {"epoch": 3, "args": Namespace(lr=1e-3)}
    torch.save({"model": {f"module.{k}": v for k, v in official.items()}, **beside}, file)
    loaded = load_official_checkpoint(file)
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[k], v) for k, v in model.state_dict().items())
    with pytest.raises(ValueError, match="path must be"):
        load_official_checkpoint(tmp_path / "absent.pth")
    torch.save({"epoch": 3}, file)
    with pytest.raises(ValueError, match="no state dict"):
        load_official_checkpoint(file)


def test_timms_optimiser_trains_it(generator):
    from timm.optim import create_optimizer_v2

    model = classifier()
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-2, weight_decay=0.1, layer_decay=0.65)
    spared = {p for g in optimizer.param_groups if g["weight_decay"] == 0 for p in g["params"]}
    mixer = model.blocks[0].mixer
    assert {mixer.D, mixer.dt_bias, mixer.conv_bias, model.cls_token} <= spared
    assert mixer.A_log not in spared
    images = torch.randn(8, 3, 8, 8, generator=generator)
    labels = torch.arange(8) % 5
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_timm_names_and_options():
    import timm

    from ritornello.methods.arm import timm_models  # noqa: F401

    with torch.device("meta"):
        model = timm.create_model(
            "arm_base_patch16_224", img_size=384, num_classes=7, global_pool="token", in_chans=1
        )
    expected = {f"arm_{size}_patch16_224" for size in ("base", "large", "huge")}
    assert expected <= set(timm.list_models("arm_*"))
    assert model.pos_embed.shape == (1, 24 * 24 + 1, 768)
    assert model.pool == "cls"
    assert model.get_classifier().out_features == 7
    assert model.patch_embed.proj.in_channels == 1
    with pytest.raises(ValueError, match="pretrained=True"):
        timm.create_model("arm_base_patch16_224", pretrained=True)


def test_head_and_features(generator):
    model = classifier(pool="cls")
    images = torch.randn(2, 3, 8, 8, generator=generator)
    features = model.forward_features(images)
    assert features.shape == (2, 17, 16)
    pooled = model.forward_head(features, pre_logits=True)
    torch.testing.assert_close(pooled, features[:, 8])
    torch.testing.assert_close(model.head(pooled), model(images))
    model.reset_classifier(0, global_pool="mean")
    means = features[:, :8].mean(1), features[:, 9:].mean(1)
    torch.testing.assert_close(model(images), (means[0] + means[1]) / 2)


def test_recomputation_gives_the_same_gradients(generator):
    model = classifier().train()
    images = torch.randn(2, 3, 8, 8, generator=generator)
    found = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(images).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_compiles_into_one_graph(generator):
    model = classifier()
    images = torch.randn(2, 3, 8, 8, generator=generator)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))


def test_decay_of_the_state_matrix_can_be_turned_off():
    model = classifier()
    for decay_ssm in (True, False):
        groups = layer_decay_groups(model, lr=1.0, layer_decay=0.5, decay_ssm=decay_ssm)
        by_name = {name: group for group in groups for name in group["names"]}
        assert (by_name["blocks.1.mixer.A_log"]["weight_decay"] > 0) == decay_ssm
        assert by_name["blocks.1.mixer.A_log"]["lr"] == 0.5
        assert by_name["blocks.0.norm1.weight"]["weight_decay"] == 0
    with pytest.raises(ValueError, match="layer_decay"):
        layer_decay_groups(model, lr=1.0, layer_decay=0.0)


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="pool must be"):
        classifier(pool="max")
    with pytest.raises(ValueError, match="leaves one patch"):
        classifier(image_size=2)


def test_transformers_mamba_trains_to_the_same_numbers_on_our_scan(generator):
    from transformers import MambaConfig, MambaForCausalLM
    from transformers.models.mamba import modeling_mamba

    config = MambaConfig(vocab_size=50, hidden_size=16, state_size=4, num_hidden_layers=2)
    torch.manual_seed(0)
    model = MambaForCausalLM(config).double()
    tokens = torch.randint(50, (2, 19), generator=generator)
    original = modeling_mamba.mamba_selective_scan
    found = []
    for patched in (False, True):
        model.zero_grad()
        if patched:
            with patch_transformers_mamba():
                assert modeling_mamba.mamba_selective_scan is not original
                loss = model(tokens, labels=tokens).loss
        else:
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        found.append([loss, *(p.grad.clone() for p in model.parameters())])
    assert modeling_mamba.mamba_selective_scan is original
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7)
