"""Topograph's experiment: data, shared warm-ups, exact resume, real vessels and membranes."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from ritornello.common.errors import UserError
from ritornello.common.runs import Cell, CellContext
from ritornello.experiments.app import build_plan, compose_config, resolve
from ritornello.experiments.topograph.data import ImagePairs, Networks
from ritornello.experiments.topograph.experiment import mask_errors
from ritornello.experiments.topograph.networks import networks, scores_around
from ritornello.experiments.topograph.published import Checkpoint, Published
from ritornello.experiments.topograph.residual_unet import ResidualUNet, load_published
from ritornello.experiments.topograph.training import Objective, Recipe, Trainer, predict
from ritornello.methods.topograph import TopographLoss, betti_errors, critical_regions, diu

RECIPE = Recipe(epochs=3, warmup_epochs=1, batch_size=2, lr=1e-2, final_lr=1e-3, channels=[4, 8])
OBJECTIVE = Objective(alpha=0.5, topology=TopographLoss())


def test_networks_are_thin_connected_and_repeatable():
    images, masks = networks(6, 48, seed=3)
    again, _ = networks(6, 48, seed=3)
    assert torch.equal(images, again)
    assert images.shape == (6, 1, 48, 48)
    assert set(masks.unique().tolist()) == {0, 1}
    assert 0.1 < masks.float().mean() < 0.5
    inside, outside = images[:, 0][masks == 1].mean(), images[:, 0][masks == 0].mean()
    assert inside > outside + 0.3
    data = Networks(size=24, train=3, test=2)
    assert not torch.equal(data.load("train", 0)[0][:2], data.load("test", 0)[0])
    scores = scores_around(masks, 0)
    assert 0.01 < (scores.argmax(1) != masks).float().mean() < 0.2


@pytest.fixture
def tiny():
    return Networks(size=16, train=4, test=2).load("train", 0)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture
def train(tiny, tmp_path):
    """train(name, recipe, objective): weights and losses, with a scratch folder of that name."""

    def run(name, recipe, objective=OBJECTIVE):
        scratch = tmp_path / name
        scratch.mkdir(exist_ok=True)
        trainer = Trainer(*tiny, 2, recipe, 0, tmp_path / "shared")
        model, result = trainer.train(objective, scratch)
        return weights(model), result.losses

    return run


def test_branching_from_a_shared_warmup_changes_nothing(train):
    alone, losses = train("alone", RECIPE)
    sharing = replace(RECIPE, share_warmup=True)
    plain, _ = train("plain", sharing, Objective())
    shared, shared_losses = train("shared_warmup", sharing)
    assert torch.equal(alone, shared)
    assert losses == shared_losses
    assert not torch.equal(alone, plain)


def test_a_copy_cut_off_is_no_warmup(train, tmp_path, monkeypatch):
    sharing = replace(RECIPE, share_warmup=True)
    whole, losses = train("whole", sharing)
    original = shutil.copytree

    def cut(source, target, **options):
        original(source, target, **options)
        (target / "training.pt").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", cut)
        with pytest.raises(KeyboardInterrupt):
            train("cut", sharing)
    again, again_losses = train("cut", sharing)
    assert torch.equal(whole, again)
    assert losses == again_losses
    assert not list(tmp_path.rglob("*.unfinished"))


def test_interrupted_training_continues_to_the_same_weights(train):
    recipe = replace(RECIPE, checkpoint_every=2)
    whole, losses = train("whole", recipe)

    class Dies(torch.nn.Module):
        calls = 0

        def forward(self, logits, target):
            self.calls += 1
            if self.calls > 2:
                raise KeyboardInterrupt
            return TopographLoss()(logits, target)

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train("cut", recipe, Objective(alpha=0.5, topology=Dies()))
    resumed, resumed_losses = train("cut", recipe)
    assert torch.equal(whole, resumed)
    assert losses == resumed_losses


def test_mask_errors_of_a_right_and_an_empty_prediction():
    _, masks = networks(3, 24, seed=0)
    right = {m.metric: m.value for m in mask_errors(masks, masks, 2)}
    assert right["dice"] == right["cldice"] == 1
    assert sum(v for k, v in right.items() if k not in ("dice", "cldice")) == 0
    empty = {m.metric: m.value for m in mask_errors(torch.zeros_like(masks), masks, 2)}
    assert empty["dice"] < 1e-6
    gt = masks == 1
    assert empty["diu"] == betti_errors(torch.zeros_like(gt), gt).matching.double().mean()
    parts = [v for k, v in empty.items() if k.startswith("diu_")]
    assert empty["diu"] == pytest.approx(sum(parts))


def test_image_pairs_are_tiled_and_checked(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(3):
        pixels = rng.integers(0, 255, (20, 33), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}_image.png")
        Image.fromarray(np.where(pixels > 127, 255, 0).astype(np.uint8)).save(
            tmp_path / f"{number}_mask.png"
        )
    images, masks = f"{tmp_path}/*_image.png", f"{tmp_path}/*_mask.png"
    data = ImagePairs(images, masks, test=1, tile=10)
    assert data.load("train", 0)[0].shape == (2 * 2 * 3, 1, 10, 10)
    pictures, labels = data.load("test", 0)
    assert torch.equal(labels[5] == 1, torch.from_numpy(pixels > 127)[10:, 20:30])
    inverted = ImagePairs(images, masks, test=1, tile=10, invert=True).load("test", 0)[1]
    assert torch.equal(inverted, 1 - labels)
    assert (pictures[:, 0][labels == 1]).min() > (pictures[:, 0][labels == 0]).max()
    with pytest.raises(UserError, match="as many files"):
        ImagePairs(images, masks, test=3, tile=10).load("train", 0)
    with pytest.raises(UserError, match="tile=64"):
        ImagePairs(images, masks, test=1, tile=64).load("train", 0)


@pytest.fixture(params=["drive", "isbi2012_em"])
def real(request, shared_data):
    folder = shared_data / "segmentation" / request.param
    if not folder.is_dir():
        pytest.skip(f"{request.param} is not here")
    if request.param == "drive":
        return ImagePairs(f"{folder}/*_training.tif", f"{folder}/*_manual1.gif", test=1, tile=64)
    # Membranes are dark in these labels.
    return ImagePairs(f"{folder}/*_image.png", f"{folder}/*_label.png", 1, 64, invert=True)


def test_real_vessels_and_membranes(real, tmp_path):
    """All backends agree, the guarantee holds, and a network learns with the loss."""
    images, masks = real.load("train", 0)
    covered = (masks.flatten(1).float().mean(1) > 0.1).nonzero()[:, 0]
    keep = covered[:: len(covered) // 16][:16]
    images, masks = images[keep], masks[keep]
    assert 0.05 < masks.float().mean() < 0.5
    gt = masks[:8] == 1
    pred = scores_around(masks[:8], 0, noise=0.8).argmax(1) == 1
    expected = critical_regions(pred, gt, backend="reference")
    for backend in ("compiled", "scipy", "torch"):
        found = critical_regions(pred, gt, backend=backend)
        assert torch.equal(found[0], expected[0])
    assert expected[1] > 20
    errors = diu(pred, gt)
    assert torch.equal(errors.total, diu(pred, gt, backend="scipy").total)
    assert (errors.total > 0).all()
    recipe = replace(RECIPE, epochs=16, warmup_epochs=8, batch_size=4, channels=[8, 16])
    objective = Objective(alpha=0.1, topology=TopographLoss())
    model, result = Trainer(images, masks, 2, recipe, 0, tmp_path).train(objective, tmp_path)
    measured = {m.metric: m.value for m in mask_errors(predict(model, images, 8), masks, 2)}
    assert measured["dice"] > 0.6
    first, last = result.losses[4 * 8 : 4 * 9], result.losses[-4:]  # epochs with topology
    assert sum(last) < sum(first)


@pytest.mark.parametrize("units", [1, 4])
def test_published_networks_are_rebuilt_from_their_weights(tmp_path, units):
    torch.manual_seed(0)
    network = ResidualUNet([4, 6, 8, 10], [2, 1, 1], units).eval()
    torch.save({"model": network.state_dict(), "scheduler": {"last_epoch": 3}}, tmp_path / "a.pth")
    images, _ = networks(2, 16, 0)
    found = load_published(tmp_path / "a.pth")
    assert torch.equal(found(images), network(images))
    assert found(images).shape == (2, 2, 16, 16)
    recipe = replace(RECIPE, channels=[4, 6, 8, 10], residual_units=units)
    recipe.network(2).load_state_dict(network.state_dict())
    part = Published(Networks(16, 2, 2), "cpu", 2)
    cell = Cell("published", "dice", 0)
    measured = list(part.measure(Checkpoint(f"{tmp_path}/*.pth"), cell, None))
    assert {m.metric for m in measured} >= {"diu", "dice"}
    with pytest.raises(UserError, match="matches 0 files"):
        list(part.measure(Checkpoint(f"{tmp_path}/b*.pth"), cell, None))
    with pytest.raises(UserError, match="no such file"):
        load_published(tmp_path / "b.pth")
    torch.save({"model": {"x": torch.zeros(1)}}, tmp_path / "c.pth")
    with pytest.raises(UserError, match="does not hold"):
        load_published(tmp_path / "c.pth")


def test_residual_unet_has_the_weights_and_values_of_monais():
    nets = pytest.importorskip("monai.networks.nets")
    theirs = nets.UNet(2, 1, 2, (8, 16, 32), (2, 1), num_res_units=3).eval()
    ours = ResidualUNet([8, 16, 32], [2, 1], 3).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 1, 16, 16)
    torch.testing.assert_close(ours(x), theirs(x))


def pair(folder, image, mask):
    Image.fromarray(image).save(folder / "a_image.png")
    Image.fromarray(mask).save(folder / "a_mask.png")
    for kind in ("image", "mask"):
        shutil.copy(folder / f"a_{kind}.png", folder / f"b_{kind}.png")
    return ImagePairs(f"{folder}/*_image.png", f"{folder}/*_mask.png", test=1, tile=8)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.zeros((9, 8), np.uint8), r"its mask .* \(9, 8\)"),
        (np.repeat(np.array([[0, 127, 255, 0]], np.uint8), 2, 1).repeat(8, 0), "one class"),
        (np.repeat(np.array([[0, 1, 2, 3]], np.uint8), 2, 1).repeat(8, 0), "0, 1, 2, 3"),
    ],
)
def test_masks_that_do_not_fit_are_told_before_training(tmp_path, mask, message):
    with pytest.raises(UserError, match=message):
        pair(tmp_path, np.zeros((8, 8), np.uint8), mask).check()


def test_deep_and_constant_images_and_masks_of_ones(tmp_path):
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    images, masks = pair(tmp_path, deep, np.eye(8, dtype=np.uint8)).load("train", 0)
    assert images.unique().numel() == 64
    assert torch.equal(masks[0], torch.eye(8, dtype=torch.long))
    images, _ = pair(tmp_path, np.full((8, 8), 7, np.uint8), np.eye(8, dtype=np.uint8) * 255).load(
        "test", 0
    )
    assert torch.equal(images, torch.zeros(1, 1, 8, 8))


def test_what_the_published_network_cannot_take(tmp_path):
    with pytest.raises(UserError, match="multiples of 2"):
        ResidualUNet([4, 8], [2], 1)(torch.zeros(1, 1, 7, 8))
    (tmp_path / "half.pth").write_bytes(b"half")
    with pytest.raises(UserError, match=r"half\.pth"):
        load_published(tmp_path / "half.pth")


def files_of_classes(folder, classes=3):
    """Four images of 16 × 16 whose masks hold the classes 0 and 1, or 0, 1 and 2."""
    images, masks = networks(4, 16, seed=0)
    for number, (image, mask) in enumerate(zip(images[:, 0], masks, strict=True)):
        mask = mask.clone()
        mask[:, 8:] *= classes - 1
        grey = ((image - image.min()) / (image.max() - image.min()) * 255).byte().numpy()
        Image.fromarray(grey).save(folder / f"{number}_image.png")
        Image.fromarray(mask.byte().numpy()).save(folder / f"{number}_mask.png")
    return [f"settings.{kind}s={folder}/*_{kind}.png" for kind in ("image", "mask")]


@pytest.mark.parametrize("profile", ["paper", "paper_multiclass"])
@pytest.mark.parametrize("arm", ["mosin", "hutopo", "betti_matching", "topograph"])
def test_the_papers_profiles_train_every_kind_of_objective(tmp_path, profile, arm):
    if arm == "hutopo":
        pytest.importorskip("gudhi")
    torch.manual_seed(0)
    torch.save({f"features.{k}": v for k, v in vgg_layers().items()}, tmp_path / "vgg19.pth")
    classes = 3 if profile == "paper_multiclass" else 2
    recipe = "parts.segmentation.measure.recipe"
    config = compose_config(
        [
            f"experiment=topograph/{profile}",
            "device=cpu",
            *files_of_classes(tmp_path, classes),
            *(["settings.classes=3"] if classes == 3 else []),
            f"settings.vgg19={tmp_path}/vgg19.pth",
            *(f"parts.segmentation.measure.data.{name}" for name in ("test=2", "tile=16")),
            f"{recipe}.channels=[4,8]",
            *(f"{recipe}.{name}" for name in ("epochs=2", "warmup_epochs=1", "batch_size=2")),
        ]
    )
    part = build_plan(resolve(config)).parts["segmentation"]
    part.measure.prepare()
    context = CellContext(tmp_path / "scratch", tmp_path / "kept")
    for folder in (context.scratch, context.artifacts):
        folder.mkdir()
    cell = Cell("segmentation", arm, 10)
    measured = {m.metric: m for m in part.measure.measure(part.arms[arm], cell, context)}
    assert len(measured["diu"].samples) == 2
    assert np.load(context.artifacts / "shown.npz")["masks"].max() == classes - 1


def vgg_layers():
    from torchvision.models import vgg19

    with torch.device("meta"):
        shapes = {k: v.shape for k, v in vgg19(weights=None).features[:18].state_dict().items()}
    return {name: 0.05 * torch.randn(shape) for name, shape in shapes.items()}


def test_errors_of_classes_are_summed_and_overlaps_averaged():
    _, masks = networks(3, 24, seed=0)
    labels = masks.clone()
    labels[:, :, 12:] *= 2
    measured = {m.metric: m.value for m in mask_errors(masks, labels, 3)}
    parts = [dict.fromkeys(measured, 0.0), *({}, {})]
    for k in (1, 2):
        one = mask_errors((masks == k).long(), (labels == k).long(), 2)
        parts[k] = {m.metric: m.value for m in one}
    for metric, value in measured.items():
        together = parts[1][metric] + parts[2][metric]
        assert value == pytest.approx(together / (2 if "dice" in metric else 1))


def test_masks_of_classes_are_numbers(tmp_path):
    files_of_classes(tmp_path)
    files = f"{tmp_path}/*_image.png", f"{tmp_path}/*_mask.png"
    assert ImagePairs(*files, test=1, tile=8, classes=3).load("train", 0)[1].max() == 2
    Image.fromarray(np.full((16, 16), 3, np.uint8)).save(tmp_path / "0_mask.png")
    with pytest.raises(UserError, match="grey value 3, and classes=3"):
        ImagePairs(*files, test=1, tile=8, classes=3).check()
    with pytest.raises(UserError, match="2 with invert"):
        ImagePairs(*files, test=1, tile=8, classes=3, invert=True)


def test_what_arms_need_is_looked_for_before_training(tmp_path):
    config = compose_config(
        [
            "experiment=topograph/paper",
            "device=cpu",
            "device=cpu",
            f"settings.vgg19={tmp_path}/vgg19.pth",
            f"settings.checkpoints={tmp_path}",
        ]
    )
    parts = build_plan(resolve(config)).parts
    with pytest.raises(UserError, match="there is no such file"):
        parts["segmentation"].arms["mosin"].prepare()
    with pytest.raises(UserError, match="matches 0 files"):
        parts["published"].arms["mosin"].prepare()
    for half in (tmp_path / "vgg19.pth", tmp_path / "mosin" / "best.pth"):
        half.parent.mkdir(exist_ok=True)
        half.write_bytes(b"half")
    with pytest.raises(UserError, match="cannot be read"):
        parts["segmentation"].arms["mosin"].prepare()
    with pytest.raises(UserError, match="does not hold"):
        parts["published"].arms["mosin"].prepare()
    for arm in ("dice", "betti_matching", "topograph"):
        parts["segmentation"].arms[arm].prepare()
