"""Equality with the official code: losses 1e-5, fusion 2e-5, pictures and tables exact."""

import json

import numpy as np
import pytest
import torch
from comm_recipe import fill, fill_module, filled
from torch import nn

from ritornello.common.data.trifeature import (
    SHAPES,
    TEXTURES,
    TrifeatureRenderer,
    list_stimuli,
    shape_template,
    split_combinations,
    texture,
)
from ritornello.methods.comm import (
    CMCLoss,
    CoMMLoss,
    CrossSelfLoss,
    FeaturesInputAdapter,
    FusionTransformer,
    MultimodalEncoder,
    PatchedInputAdapter,
    nt_xent,
    supcon_loss,
)
from ritornello.methods.comm.adapters import position_table_1d, position_table_2d
from ritornello.methods.comm.trifeatures import bijection_of, listed_pairs


@pytest.fixture
def stored(golden):
    def load(name):
        file = golden / "comm" / name
        return np.load(file) if name.endswith("npz") else json.loads(file.read_text())

    return load


def test_recipe():
    expected = [-0.6543603257974433, 0.4888936898505789, -0.28950115686828704]
    assert fill("a", 3).tolist() == expected


@pytest.mark.parametrize("number", range(6))
def test_comm_loss(stored, number):
    case = stored("comm_loss.json")[number]
    n, d = case["N"], case["D"]
    views = [
        [
            filled(f"{case['tag']}.{view}.{k}", n, d).requires_grad_()
            for k in range(case["n_embeddings"])
        ]
        for view in ("z1", "z2")
    ]
    output = CoMMLoss(case["temperature"], case["weights"])(*views)
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(output.loss.item(), case["loss"], **close)
    for k in range(case["n_embeddings"]):
        torch.testing.assert_close(output.per_term[k].item(), case[f"ssl_loss_{k}"], **close)
        torch.testing.assert_close(output.accuracy[k].item(), case[f"ssl_acc_{k}"], **close)
    torch.testing.assert_close(output.accuracy.mean().item(), case["ssl_acc"], **close)
    output.loss.backward()
    for view, name in zip(views, ("grad_norm_z1", "grad_norm_z2"), strict=True):
        norms = [z.grad.norm().item() for z in view]
        torch.testing.assert_close(norms, case[name], **close)


@pytest.mark.parametrize("number", range(2))
def test_baseline_losses(stored, number):
    case = stored("baseline_losses.json")[number]
    a, b, c, d, e, f = (filled(f"{case['tag']}.{x}", case["N"], case["D"]) for x in "abcdef")
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(nt_xent(a, b).item(), case["infonce"], **close)
    both = CrossSelfLoss()([a, b], [(c, d), (e, f)])
    torch.testing.assert_close(both.loss.item(), case["cross_self"], **close)
    torch.testing.assert_close(both.accuracy[0].item(), case["infonce_acc"], **close)
    torch.testing.assert_close(CMCLoss()([a, b, c]).loss.item(), case["cmc_abc"], **close)
    labels = torch.tensor(case["supcon_labels"])
    supcon = supcon_loss(torch.stack([a, b], dim=1), labels, temperature=0.07)
    torch.testing.assert_close(supcon.item(), case["supcon_ab"], **close)


def fusion_case(stored, pool):
    info = stored("fusion.json")
    fusion = FusionTransformer(info["width"], info["heads"], info["layers"], pool=pool)
    if pool == "cls":
        assert {k: list(v.shape) for k, v in fusion.state_dict().items()} == dict(info["keys"])
    fill_module(fusion, info["tag"])
    tokens = [
        filled(f"{info['tag']}.tok{i}", info["batch"], length, info["width"])
        for i, length in enumerate(info["token_lengths"])
    ]
    return info, fusion, tokens


def test_fusion_of_all_of_each_and_of_padded(stored):
    info, fusion, tokens = fusion_case(stored, "cls")
    arrays = stored("fusion.npz")
    close = {"rtol": 2e-5, "atol": 2e-5}
    subsets = fusion.subsets(tokens, [[True, False], [False, True], [True, True]])
    for embedding, name in zip(subsets, ("only0", "only1", "all"), strict=True):
        torch.testing.assert_close(embedding, torch.from_numpy(arrays[name]), **close)
    padding = [torch.zeros(t.shape[:2], dtype=torch.bool) for t in tokens]
    padding[-1][0, -info["padded_last"] :] = True
    padded = fusion(tokens, padding)
    torch.testing.assert_close(padded, torch.from_numpy(arrays["all_padded"]), **close)


def test_fusion_by_mean(stored):
    _, fusion, tokens = fusion_case(stored, "mean")
    expected = torch.from_numpy(stored("fusion.npz")["all_meanpool"])
    torch.testing.assert_close(fusion(tokens), expected, rtol=2e-5, atol=2e-5)


def test_multimodal_encoder(stored):
    info = stored("mmfusion.json")
    model = MultimodalEncoder(
        [
            nn.Conv2d(3, 6, 3, stride=2, padding=1),
            nn.Sequential(nn.Linear(5, 8), nn.Tanh()),
        ],
        [PatchedInputAdapter(6, 16, 4), FeaturesInputAdapter(8, 16)],
        FusionTransformer(16, 4, 1),
    )
    assert {k: list(v.shape) for k, v in model.state_dict().items()} == dict(info["keys"])
    fill_module(model, info["tag"], skip=("pos_emb",))
    inputs = [filled(f"{info['tag']}.img", 2, 3, 8, 8), filled(f"{info['tag']}.tab", 2, 5)]
    arrays = stored("mmfusion.npz")
    close = {"rtol": 2e-5, "atol": 2e-5}
    picture, table, both = model(inputs, [[True, False], [False, True], [True, True]])
    found = {"only_image": picture, "only_tabular": table, "both": both}
    for name, embedding in found.items():
        torch.testing.assert_close(embedding, torch.from_numpy(arrays[name]), **close)
    torch.testing.assert_close(model(inputs), both, **close)


def test_position_tables(stored):
    for name, expected in stored("posemb.npz").items():
        kind, sizes = name.split("_")
        build = position_table_1d if kind == "pe1d" else position_table_2d
        table = build(*map(int, sizes.split("x")))
        torch.testing.assert_close(table, torch.from_numpy(expected), rtol=0, atol=1e-6)


def unpacked(bits, side):
    return np.unpackbits(bits)[: side * side].reshape(side, side)


def test_shapes_and_textures(stored):
    arrays, info = stored("trifeatures.npz"), stored("trifeatures.json")
    for name in SHAPES:
        assert np.array_equal(shape_template(name), unpacked(arrays[f"shape_{name}"], 128)), name
    side = info["texture_size"]
    for name in TEXTURES:
        drawn = texture(name, side, np.random.default_rng(info["texture_rng_seed"]))
        assert np.array_equal(drawn, unpacked(arrays[f"texture_{name}"], side)), name


def test_stimuli(stored):
    arrays, renderer = stored("trifeatures.npz"), TrifeatureRenderer()
    for number, s in enumerate(stored("trifeatures.json")["stimuli"]):
        rng = np.random.default_rng(s["rng_seed"])
        image = renderer.render(s["shape"], s["color"], s["texture"], rng)
        expected = arrays[f"stimulus{number}"]
        assert np.abs(image.astype(int) - expected.astype(int)).max() <= 1


def test_split_and_pairs(stored):
    info = stored("bimodal_pairs.json")
    seed = info["seed"]
    assert np.packbits(split_combinations(seed)).tolist() == info["split_bits"]
    assert len(list_stimuli("test")) == info["n_test"]
    expected = [colour for _, colour in info["correlated_texture_color_pairs"]]
    assert bijection_of(seed).tolist() == expected
    for split in ("train", "test"):
        listed = list_stimuli(split)
        for biased in (False, True):
            case = info[f"{split}_biased{int(biased)}"]
            pairs = listed_pairs(listed, biased=biased, seed=seed)
            assert len(pairs) == case["n_pairs"]
            shown = [[listed[i][0], listed[j][0]] for i, j in pairs[:20]]
            assert shown == case["first20"]
            assert int(pairs.sum()) == case["sum_idx"]
