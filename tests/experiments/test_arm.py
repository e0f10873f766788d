"""ARM's experiment: data, batches that depend on their number alone, exact resume."""

import numpy as np
import pytest
import torch
from PIL import Image

from ritornello.common.errors import UserError
from ritornello.experiments.arm.data import Digits, ImageFolders, batch_indices
from ritornello.experiments.arm.experiment import Transfer
from ritornello.experiments.arm.training import Recipe, TuningRecipe, correct, pretrain, tune
from ritornello.methods.arm import ARMForImageClassification, ARMForPretraining

SIZES = {"patch_size": 2, "depth": 1, "dim": 8, "d_state": 2, "channels": 1}
SIZES_OF_ENCODER = {name: size for name, size in SIZES.items() if name != "channels"}
PLACE = {"image_size": 8, "seed": 0, "device": "cpu"}


def pretraining_model():
    torch.manual_seed(0)
    options = {"decoder_dim": 8, "decoder_depth": 1, "cluster_size": 2, "order": "random"}
    return ARMForPretraining(8, **options, **SIZES)


class Killed(Exception):
    pass


class KilledAt:
    """Data that fails at one of its loads, as a killed process would."""

    def __init__(self, data, load):
        self.data, self.left, self.num_classes = data, load, data.num_classes

    def size(self, split):
        return self.data.size(split)

    def load(self, *arguments):
        self.left -= 1
        if self.left < 0:
            raise Killed
        return self.data.load(*arguments)


def test_batches_pass_through_every_image_once_an_epoch():
    numbers = [batch_indices(10, 4, i, seed=0) for i in range(5)]
    first, second = torch.cat(numbers)[:10], torch.cat(numbers)[10:]
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()
    assert len(batch_indices(3, 8, 2, seed=0)) == 8


def test_digits_are_split_without_overlap_and_shifted_by_a_pixel():
    data = Digits(seed=0)
    assert (data.size("train"), data.size("test")) == (1197, 600)
    plain, _ = data.load("train", torch.arange(50), "evaluate", 8)
    torch.manual_seed(0)
    shifted, _ = data.load("train", torch.arange(50), "pretrain", 8)
    padded = torch.nn.functional.pad(plain, [1, 1, 1, 1], value=-1.0)
    for image, source in zip(shifted, padded, strict=True):
        crops = [source[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
        assert any(torch.equal(image, crop) for crop in crops)
    with pytest.raises(UserError, match="image_size must be 8"):
        data.load("test", torch.arange(2), "evaluate", 16)
    with pytest.raises(UserError, match="test_images"):
        Digits(seed=0, test_images=0)


def test_interrupted_pretraining_continues_to_the_same_curve(tmp_path):
    recipe, data = Recipe(steps=7, batch_size=4, lr=1e-2, checkpoint_every=2), Digits(seed=0)
    whole = pretraining_model()
    curve = pretrain(whole, data, recipe, scratch=tmp_path / "whole", **PLACE).losses
    with pytest.raises(Killed):
        pretrain(pretraining_model(), KilledAt(data, 5), recipe, scratch=tmp_path / "cut", **PLACE)
    resumed = pretraining_model()
    result = pretrain(resumed, data, recipe, scratch=tmp_path / "cut", **PLACE)
    assert result.resumed_from >= 2
    assert result.losses == curve
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_tuning_with_mixing_and_averaged_weights_is_repeatable(tmp_path):
    recipe = TuningRecipe(
        steps=4, batch_size=4, lr=1e-2, mixup=0.8, cutmix=1.0, ema_decay=0.5, layer_decay=0.65
    )
    data, found = Digits(seed=0), []
    for name in ("first", "second"):
        torch.manual_seed(0)
        model = ARMForImageClassification(8, num_classes=10, **SIZES)
        tuned = tune(model, data, recipe, labelled=20, scratch=tmp_path / name, **PLACE)
        assert tuned is not model
        found.append([p.clone() for p in tuned.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    hits = correct(tuned, data, "test", image_size=8, device="cpu")
    assert len(hits) == 600
    assert set(hits) <= {0.0, 1.0}


@pytest.fixture
def folders(tmp_path):
    """A training set of three classes, and a test set of two of them."""
    shades = {"n01": 30, "n02": 130, "n03": 230}
    for split, names in {"train": shades, "val": shades, "fewer": ("n03", "n01")}.items():
        for name in names:
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for i in range(2):
                pixels = np.full((40, 48, 3), shades[name] + i, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    tests = {"val": str(tmp_path / "val"), "fewer": str(tmp_path / "fewer")}
    return ImageFolders(seed=0, train=str(tmp_path / "train"), tests=tests)


def test_image_folders_load_for_every_use(folders):
    assert folders.num_classes == 3
    assert folders.size("fewer") == 4
    for transform in ("pretrain", "finetune", "evaluate"):
        images, labels = folders.load("train", torch.arange(6), transform, 32)
        assert images.shape == (6, 3, 32, 32)
        assert sorted(labels.tolist()) == [0, 0, 1, 1, 2, 2]
    images, labels = folders.load("fewer", torch.arange(4), "evaluate", 32)
    assert labels.tolist() == [0, 0, 2, 2]
    assert folders.classes("fewer").tolist() == [0, 2]
    assert folders.classes("val") is None
    torch.testing.assert_close(images[0, 0, 0, 0], torch.tensor((30 / 255 - 0.485) / 0.229))


def test_a_test_set_of_fewer_classes_is_scored_among_those(folders):
    class Guess(torch.nn.Module):
        def forward(self, images):
            return torch.tensor([[0.0, 9.0, 1.0]]).expand(len(images), -1)

    assert correct(Guess(), folders, "fewer", image_size=32, device="cpu") == [0, 0, 1, 1]
    assert correct(Guess(), folders, "val", image_size=32, device="cpu") == [0, 0, 1, 1, 0, 0]


def test_relabelled_images_have_any_of_several_classes_or_are_left_out(folders, tmp_path):
    class Guess(torch.nn.Module):
        def forward(self, images):
            return torch.tensor([[0.0, 9.0, 1.0]]).expand(len(images), -1)

    for index, path in enumerate(sorted((tmp_path / "val").rglob("*.png"))):
        path.rename(path.with_name(f"val_{5 - index}.png"))  # names run against the classes
    (tmp_path / "real.json").write_text("[[1, 2], [2], [], [1], [0, 1], [0]]")
    tests = {"real": str(tmp_path / "val")}
    data = ImageFolders(0, folders.train, tests, relabelled={"real": str(tmp_path / "real.json")})
    assert data.size("real") == 5
    images, labels = data.load("real", torch.arange(5), "evaluate", 32)
    assert images[:2].mean() < images[2:3].mean() < images[3:].mean()  # folders n01, n02, n03
    assert labels.int().tolist() == [[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert correct(Guess(), data, "real", image_size=32, device="cpu") == [1, 0, 1, 1, 0]
    (tmp_path / "real.json").write_text("[[1]]")
    data = ImageFolders(0, folders.train, tests, relabelled={"real": str(tmp_path / "real.json")})
    with pytest.raises(UserError, match="1 labels for 6 images"):
        data.size("real")
    with pytest.raises(UserError, match="no file"):
        ImageFolders(0, folders.train, tests, relabelled={"real": "absent.json"}).size("real")
    (tmp_path / "real.json").write_text("[")
    data = ImageFolders(0, folders.train, tests, relabelled={"real": str(tmp_path / "real.json")})
    with pytest.raises(UserError, match="is no JSON"):
        data.size("real")


def test_a_test_set_may_be_left_out(folders):
    tests = {"val": folders.folders["val"], "real": None}
    data = ImageFolders(0, folders.train, tests, relabelled={"real": "absent.json"})
    assert data.tests == ("val",)
    assert data.size("val") == 6
    with pytest.raises(UserError, match=r"relabelled.reel: no test set"):
        ImageFolders(0, folders.train, tests, relabelled={"reel": "absent.json"})
    with pytest.raises(UserError, match="at least one test set"):
        Transfer(
            lambda seed: ImageFolders(seed, folders.train, {}), SIZES_OF_ENCODER, {}, {}, 32
        ).prepare()


@pytest.mark.parametrize(
    ("tuning", "told"),
    [({"layer_deca": 0.5}, "tuning: .*'layer_deca'"), ({"steps": 0}, "steps must be at least 1")],
)
def test_a_recipe_that_cannot_be_followed_is_told_before_the_pretraining(tuning, told):
    recipe = {"steps": 1, "batch_size": 1, "lr": 1e-3}
    plan = Transfer(lambda seed: Digits(seed), SIZES_OF_ENCODER, recipe, recipe | tuning, 8)
    with pytest.raises(UserError, match=told):
        plan.prepare()


def test_class_folders_may_be_numbers_and_others_are_told(folders, tmp_path):
    (tmp_path / "val").rename(tmp_path / "v2")
    for number, name in enumerate(("n01", "n02", "n03")):
        (tmp_path / "v2" / name).rename(tmp_path / "v2" / str(number))
    data = ImageFolders(0, folders.train, {"v2": str(tmp_path / "v2")})
    assert data.classes("v2") is None
    assert data.load("v2", torch.arange(6), "evaluate", 32)[1].tolist() == [0, 0, 1, 1, 2, 2]
    (tmp_path / "v2" / "2").rename(tmp_path / "v2" / "3")
    plan = Transfer(lambda seed: ImageFolders(seed, folders.train, {"v2": str(tmp_path / "v2")}),
                    SIZES_OF_ENCODER, {}, {}, 32)  # fmt: skip
    with pytest.raises(UserError, match="v2: 3 is not a class folder"):
        plan.prepare()


def test_missing_folder_is_told(tmp_path):
    data = ImageFolders(seed=0, train=str(tmp_path / "absent"), tests={})
    with pytest.raises(UserError, match="there is no folder"):
        data.size("train")
