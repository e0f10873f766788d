"""Explainers, fine-tuned and retrained judges, and the report."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from ritornello.methods.f_fidelity import (
    RandomRemoval,
    RandomRemovalFinetune,
    RemovalSpec,
    judge_report,
    removal_curve,
    roar,
)
from ritornello.methods.f_fidelity import explainers as ours
from ritornello.methods.f_fidelity.baselines import roar_batches
from ritornello.methods.f_fidelity.finetune import accuracy, train_classifier


@pytest.fixture
def network():
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip
    return layers.eval()


@pytest.fixture
def images():
    g = torch.Generator().manual_seed(1)
    labels = torch.arange(48) % 3
    x = torch.randn(48, 3, 8, 8, generator=g) * 0.3
    # The class is the bright channel of one quarter.
    for i, label in enumerate(labels):
        x[i, label, :4, :4] += 1.5
    return x + 1, labels


def batches(x, y, size=16):
    def batch(number):
        rows = torch.randint(len(y), (size,), generator=torch.Generator().manual_seed(number))
        return x[rows], y[rows]

    return batch


def fast(parameters):
    return torch.optim.Adam(parameters, lr=1e-2)


@pytest.mark.parametrize(
    ("mine", "method", "attribute"),
    [
        (ours.saliency, "Saliency", {}),
        (
            lambda *a: ours.integrated_gradients(*a, steps=64),
            "IntegratedGradients",
            {"n_steps": 64, "method": "riemann_middle"},
        ),
    ],
)
def test_explainers_equal_captums(network, images, mine, method, attribute):
    pytest.importorskip("captum")
    x, y = images[0][:5], images[1][:5]
    theirs = ours.captum_explainer(method, attribute=attribute)(network, x, y)
    torch.testing.assert_close(mine(network, x, y), theirs.float(), rtol=1e-3, atol=1e-5)


def test_gradcam_equals_captums_up_to_scale(network, images):
    pytest.importorskip("captum")
    x, y = images[0][:5], images[1][:5]
    theirs = ours.captum_explainer(
        "LayerGradCam", layer="5", attribute={"relu_attributions": True}
    )(network, x, y)
    from captum.attr import LayerGradCam

    by_class = ours.captum_explainer(LayerGradCam, layer="5", attribute={"relu_attributions": True})
    torch.testing.assert_close(by_class(network, x, y), theirs)
    low, high = theirs.amin((1, 2), keepdim=True), theirs.amax((1, 2), keepdim=True)
    scaled = (theirs - low) / (high - low).clamp(min=1e-12)
    torch.testing.assert_close(ours.gradcam(network, x, y, layer="5"), scaled, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="layer must be a module"):
        ours.gradcam(network, x, y, layer="conv9")
    with pytest.raises(ValueError, match="layer must be given"):
        ours.captum_explainer("LayerGradCam")


def test_smoothgrad_squares_in_expectation_like_captums(network, images):
    pytest.importorskip("captum")
    x, y = images[0][:3], images[1][:3]
    torch.manual_seed(0)
    options = {"n_steps": 4, "nt_type": "smoothgrad_sq", "nt_samples": 300, "stdevs": 0.2}
    options["method"] = "riemann_middle"
    theirs = ours.captum_explainer("IntegratedGradients", attribute=options)(network, x, y)
    mine = ours.smoothgrad_sq(network, x, y, samples=300, steps=4, noise=0.2)
    agreement = np.corrcoef(mine.flatten(), theirs.flatten())[0, 1]
    assert agreement > 0.98
    assert mine.sum().item() == pytest.approx(theirs.sum().item(), rel=0.1)


def test_token_scores_add_up_to_the_logit_of_a_linear_bag(generator):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(20, 4)
            self.head = nn.Linear(4, 2, bias=False)

        def forward(self, input_ids):
            return self.head(self.embedding(input_ids).sum(1))

    bag = Bag().eval()
    inputs = {"input_ids": torch.randint(20, (3, 6), generator=generator)}
    targets = torch.tensor([0, 1, 1])
    scores = ours.embedding_gradient(bag, inputs, targets, embedding=bag.embedding)
    logits = bag(**inputs).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(scores.sum(1), logits)


def test_random_removal_takes_whole_pixels_and_the_stated_number(images, generator):
    x = images[0]
    out = RandomRemoval(0.25)(x, generator)
    gone = (out == 0).all(1)
    assert bool((gone.flatten(1).sum(1) == 16).all())
    assert torch.equal(out[~gone[:, None].expand_as(x)], x[~gone[:, None].expand_as(x)])
    assert not torch.equal(gone[0], gone[1])
    fewer = (RandomRemoval(0.5, distribution="uniform")(x, generator) == 0).all(1)
    counts = fewer.flatten(1).sum(1)
    assert counts.max() <= 32
    assert counts.unique().numel() > 5


def test_legacy_removal_empties_the_first_channel_only(images, generator):
    x = images[0]
    out = RandomRemoval(0.25, legacy_channel0=True)(x, generator)
    assert torch.equal(out[:, 1:], x[:, 1:])
    assert bool(((out[:, 0] == 0).flatten(1).sum(1) == 16).all())
    with pytest.raises(ValueError, match="fraction"):
        RandomRemoval(0.0)
    with pytest.raises(ValueError, match="distribution"):
        RandomRemoval(0.1, distribution="normal")


def test_finetuning_leaves_f_alone_and_keeps_the_best_checkpoint(network, images):
    x, y = images
    before = copy.deepcopy(network.state_dict())
    finetune = RandomRemovalFinetune(30, RandomRemoval(0.2), fast, evaluate_every=10)
    tuned = finetune(network, batches(x, y), (x, y))
    assert all(torch.equal(a, b) for a, b in zip(before.values(), network.state_dict().values()))
    assert not tuned.model.training
    assert tuned.removed > tuned.removed_before
    assert tuned.step in (10, 20, 30)
    assert tuned.clean == accuracy(tuned.model, x, y)
    # Running statistics moved while training, and do not while judging.
    moved = copy.deepcopy(tuned.model[1].running_mean)
    assert not torch.equal(moved, network[1].running_mean)
    removal_curve(tuned.model, x, y, x.sum(1), [0.5])
    assert torch.equal(moved, tuned.model[1].running_mean)


def test_a_resumed_finetuning_gives_the_same_judge(network, images, tmp_path):
    x, y = images
    finetune = RandomRemovalFinetune(12, RandomRemoval(0.2), fast, evaluate_every=4, seed=3)
    straight = finetune(network, batches(x, y), (x, y))

    def killed(number):
        if number == 9:
            raise KeyboardInterrupt
        return batches(x, y)(number)

    resumable = dataclasses.replace(finetune, scratch=tmp_path, checkpoint_every=4)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        resumable(network, killed, (x, y))
    again = resumable(network, batches(x, y), (x, y))
    assert (again.step, again.removed) == (straight.step, straight.removed)
    for a, b in zip(again.model.state_dict().values(), straight.model.state_dict().values()):
        torch.testing.assert_close(a, b)


def test_losing_clean_accuracy_is_told(network, images):
    x, y = images
    trained = train_classifier(network, batches(x, y), steps=60, optimizer=fast)
    assert accuracy(trained, x, y) > 0.9

    shuffled = y.roll(1)
    with pytest.warns(UserWarning, match="accuracy on whole inputs fell"):
        RandomRemovalFinetune(40, _Misleading(), fast, evaluate_every=40)(
            trained, lambda n: (x, shuffled), (x, y)
        )


class _Misleading(RandomRemoval):
    """Whole inputs while training; the checkpoint is chosen on inputs with rolled channels."""

    def forward(self, inputs, generator=None):
        return inputs if generator is None else inputs.roll(1, 1)


def test_roar_removes_the_top_of_its_own_explainer(images):
    x, y = images
    scores = torch.arange(64.0).view(1, 8, 8).expand(48, 8, 8)
    batch = roar_batches(scores, x, y, batch_size=40, seed=2)
    emptied, labels = batch(5)
    gone = (emptied == 0).all(1).flatten(1)
    # What is gone is always the end of the grid, of varying length.
    assert bool((gone.long().diff(dim=1) >= 0).all())
    assert gone.sum(1).unique().numel() > 10
    again, same = batch(5)
    assert torch.equal(emptied, again)
    assert torch.equal(labels, same)
    seen = []
    assert roar(lambda b: seen.append(b) or nn.Identity(), scores, x, y) is not None
    assert seen[0](0)[0].shape == (128, 3, 8, 8)
    with pytest.raises(ValueError, match="explanations must have the shape"):
        roar_batches(x, x, y, batch_size=4)


def test_report_ranks_and_compares(network, images):
    x, y = images
    f = train_classifier(network, batches(x, y), steps=60, optimizer=fast)
    judge = RandomRemovalFinetune(20, optimizer=fast)(f, batches(x, y), (x, y)).model
    truth = torch.zeros(48, 8, 8)
    truth[:, :4, :4] = 1

    def planted(model, inputs, labels):
        return truth[: len(inputs)] + 0.01 * inputs.sum(1)

    report = judge_report(
        f, {"planted": planted}, (x, y),
        judge=judge, sizes=[0.1, 0.25, 0.5, 0.75], n_samples=4, reduce="prob",
        metrics=["fidelity", "roar", "r_fidelity", "f_fidelity"],
        roar_judges=lambda name, p: f,
    )  # fmt: skip
    rows = report.rows()
    assert len(rows) == 4 * 6 * 2 * 4
    assert all(0 <= row["value"] <= 1 for row in rows)
    summary = {row["metric"]: row for row in report.summary()}
    assert summary["f_fidelity"]["macro_lerf_vs_gt"] > 0.7
    # ROAR with f as its judge is plain fidelity.
    assert summary["roar"]["macro_morf_vs_gt"] == summary["fidelity"]["macro_morf_vs_gt"]
    assert summary["fidelity"]["forwards"] < summary["f_fidelity"]["forwards"]
    difference = report.compare("planted", "f_fidelity", "f_fidelity")
    assert difference == (0, 0, 0)
    gap = report.compare("planted", "r_fidelity", "fidelity", pair="lerf_vs_gt", resamples=50)
    assert gap.low <= gap.high
    figure = report.figure("planted")
    assert len(figure.axes) == 4
    with pytest.raises(ValueError, match="roar_judges"):
        judge_report(f, {}, (x, y), judge=judge, metrics=["roar"])
    with pytest.raises(ValueError, match="metrics must be of"):
        judge_report(f, {}, (x, y), judge=judge, metrics=["fid"])


def test_a_transformers_classifier_is_judged_and_finetuned():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=12, num_labels=2,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    ids = torch.randint(4, 30, (6, 8), generator=torch.Generator().manual_seed(0))
    ids[:, 0], ids[:, -1] = 1, 2
    ids[0, 5:] = 0
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    labels = torch.tensor([0, 1] * 3)
    removal = RemovalSpec(3, "token", special_ids=(0, 1, 2))
    scores = ours.embedding_gradient(model, inputs, labels)
    assert scores.shape == ids.shape
    finetune = RandomRemovalFinetune(2, RandomRemoval(0.2, removal=removal), fast)
    tuned = finetune(model, lambda n: (inputs, labels), (inputs, labels))
    curve = removal_curve(
        tuned.model, inputs, labels, scores, [0.3, 1.0], alpha=0.5, beta=0.2, removal=removal
    )
    assert curve.shape == (6, 3)


def test_plain_morf_equals_quantus_pixel_flipping(network, images):
    """Quantus flips cells channel by channel, and gives the probability after every step."""
    quantus = pytest.importorskip("quantus")
    x, y = images[0][:4], images[1][:4]
    scores = ours.input_gradient(network, x, y)
    # Ties (cells that lose a max-pool) would be broken in another order there.
    scores += 1e-7 * torch.randn(scores.shape, generator=torch.Generator().manual_seed(0))
    flipping = quantus.PixelFlipping(
        features_in_step=32, perturb_baseline=0.0, disable_warnings=True, abs=False,
        normalise=False, return_aggregate=False,
    )  # fmt: skip
    theirs = flipping(
        model=network, x_batch=x.numpy(), y_batch=y.numpy(), a_batch=scores.numpy(),
        device="cpu", softmax=True,
    )  # fmt: skip
    curve = removal_curve(
        network, x, y, scores, [i / 6 for i in range(1, 7)],
        removal=RemovalSpec(unit="element"), reduce="prob",
    )  # fmt: skip
    np.testing.assert_allclose(np.asarray(theirs), curve[:, 1:], atol=1e-5)
