"""The trained parts: an interrupted run ends like an unbroken one; texts and tasks."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ritornello.common.moe import SMoERouter, XMoERouter
from ritornello.common.moe.losses import balance_loss
from ritornello.common.runs import Cell, CellContext, UserError
from ritornello.common.training import fit
from ritornello.experiments.ac_router.corpus import Corpus, Vocabulary, enwik8, streams, wikitext103
from ritornello.experiments.ac_router.images import Digits, ImageFolders
from ritornello.experiments.ac_router.language import LanguageModel
from ritornello.experiments.ac_router.regression import ClusterTask, Regression
from ritornello.experiments.ac_router.routers import Routers, total_balance_loss
from ritornello.experiments.ac_router.training import Training
from ritornello.experiments.ac_router.vision import Vision
from ritornello.methods.ac_router import ACRouter
from ritornello.methods.ac_router.baselines import SMoEDropoutRouter

ADAPTIVE = Routers(SMoERouter, partial(ACRouter, statistics="running"))


def text() -> Corpus:
    line = "the quick brown fox jumps over the lazy dog\n"
    return Corpus(line * 40, line * 10)


def language_part() -> LanguageModel:
    return LanguageModel(
        corpus=text,
        d_model=8,
        hidden=8,
        num_heads=2,
        num_experts=4,
        span=8,
        segment=8,
        batch_size=4,
        accumulate=2,
        steps=8,
        checkpoint_every=3,
        eval_batch_size=2,
    )


def regression_part() -> Regression:
    return Regression(steps=8, train_tokens=100, batch_size=16, test_tokens=64, checkpoint_every=3)


class Killed(Exception):
    pass


def measure(part, arm: Routers, folder: Path) -> dict:
    for name in ("scratch", "artifacts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    context = CellContext(folder / "scratch", folder / "artifacts")
    found = part.measure(arm, Cell("part", "arm", 0), context)
    return {(m.metric, *m.coordinates.items()): m.value for m in found}


@pytest.mark.parametrize("make", [language_part, regression_part])
@pytest.mark.parametrize("arm", [ADAPTIVE, Routers(SMoEDropoutRouter)], ids=["ac", "dropout"])
def test_an_interrupted_cell_ends_with_the_same_numbers(make, arm, tmp_path, monkeypatch):
    """The caches of the texts, running statistics and growing k come back with the checkpoint."""
    unbroken = measure(make(), arm, tmp_path / "unbroken")
    part = make()
    original, batches = type(part)._reader, 10 if make is language_part else 5

    def failing(self, *arguments):
        read = original(self, *arguments)

        def killed(number):
            if number >= batches:
                raise Killed
            return read(number)

        return killed

    with monkeypatch.context() as patch:
        patch.setattr(type(part), "_reader", failing)
        with pytest.raises(Killed):
            measure(part, arm, tmp_path / "broken")
    assert any((tmp_path / "broken" / "scratch").iterdir())
    assert measure(part, arm, tmp_path / "broken") == unbroken


def test_growing_routers_grow_with_the_optimiser_steps_and_not_with_the_batches(tmp_path):
    router = SMoEDropoutRouter(4, 5, top_k=1)
    model, seen = torch.nn.Sequential(torch.nn.Linear(4, 4), router), []

    def loss(model, batch):
        seen.append(router.top_k)
        return model[0](batch).square().mean()

    def batch(number):
        return torch.ones(2, 4)

    def train(**options):
        training = Training(model, loss, steps=4, learning_rate=1e-3, **options)
        fit(training, batch, steps=4, accumulate=2)

    train()
    assert seen == [1, 1, 2, 2, 3, 3, 4, 4]
    train(grow=False)
    assert seen[8:] == [4] * 8


def test_the_balance_loss_has_each_gates_temperature():
    torch.manual_seed(0)
    part = language_part()
    model = part.build(Routers(XMoERouter))
    states = model(torch.randint(100, (2, 8))).states
    expected = sum(balance_loss(state, temperature=0.3) for state in states)
    torch.testing.assert_close(total_balance_loss(model, states), expected)


def test_an_arm_without_an_adaptive_gate_is_ordinary_everywhere():
    assert Routers(SMoERouter).pattern("sgsfscsf") == "sgsfsgsf"
    assert ADAPTIVE.pattern("sgsfscsf") == "sgsfscsf"


def test_cluster_task_has_one_linear_map_per_cluster():
    task = ClusterTask(
        clusters=3,
        features=6,
        tight_features=2,
        tight_spread=0.1,
        loose_spread=2.0,
        outputs=2,
        seed=0,
    )
    tokens, targets, labels = task.draw(500, 0)
    for k in range(3):
        solution = torch.linalg.lstsq(tokens[labels == k], targets[labels == k]).solution
        torch.testing.assert_close(solution, task.maps[k], rtol=1e-3, atol=1e-3)
    again, _, _ = task.draw(500, 0)
    other, _, _ = task.draw(500, 1)
    assert torch.equal(tokens, again)
    assert not torch.equal(tokens, other)


def test_word_vocabulary_is_ordered_by_frequency_with_unknown_first():
    vocabulary = Vocabulary.of("b a b\nb a <unk>\n", "word")
    assert vocabulary.words == {"<unk>": 0, "b": 1, "<eos>": 2, "a": 3}
    assert vocabulary.encode("a AAA b").tolist() == [3, 0, 1, 2]
    assert Vocabulary.of("", "byte").encode("AZ").tolist() == [65, 90]
    with pytest.raises(ValueError, match="unit must be"):
        Vocabulary.of("", "char")


def test_missing_texts_are_named(tmp_path):
    with pytest.raises(UserError, match=r"wiki\.train\.tokens"):
        wikitext103(str(tmp_path))
    assert streams(torch.arange(9), 4, 1).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(UserError, match="too few for 4 streams with a segment of 2"):
        streams(torch.arange(9), 4, 2)
    texts = {"train": "ab " * 999, "test": "ab " * 9}
    part = LanguageModel(lambda: Corpus(**texts), segment=8, batch_size=2, eval_batch_size=4)
    with pytest.raises(UserError, match="the text has 27 tokens, too few for 4 streams"):
        part.prepare()  # before a training of days, not after it


def test_enwik8_is_cut_as_the_field_does_byte_for_byte(tmp_path):
    data = bytes(range(256)) * 40
    (tmp_path / "enwik8").write_bytes(data)
    corpus = enwik8(str(tmp_path / "enwik8"))
    train, test = (Vocabulary(None).encode(text) for text in corpus)
    assert bytes(train.tolist()) == data[: len(data) * 9 // 10]
    assert bytes(test.tolist()) == data[len(data) * 95 // 100 :]
    with pytest.raises(UserError, match="must be the file enwik8"):
        enwik8(str(tmp_path / "absent"))


def test_folders_of_several_corruptions_are_one_set(tmp_path):
    for number, leaf in enumerate(("fog/1", "fog/2", "snow/1")):
        for name in ("n01", "n02"):
            folder = tmp_path / leaf / name
            folder.mkdir(parents=True)
            pixels = np.full((16, 16, 3), 10 * number + int(name[-1]), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "image.png")
    together = ImageFolders(root=str(tmp_path), size=16, pattern="*/*")
    images, labels = together.batch(torch.arange(len(together)))
    assert (images[:, 0, 0, 0] * 255).round().tolist() == [1, 2, 11, 12, 21, 22]
    assert labels.tolist() == [0, 1] * 3
    alone = ImageFolders(root=str(tmp_path / "fog" / "1"), size=16, pattern=None)
    assert alone.class_names == ["n01", "n02"]
    assert len(alone) == 2
    with pytest.raises(UserError, match="val/<class>"):
        ImageFolders(root=str(tmp_path))
    with pytest.raises(UserError, match="find any class folder in"):
        ImageFolders(root=str(tmp_path / "fog" / "1"), pattern="*")


def test_digits_of_some_classes_are_numbered_among_those():
    fewer = Digits(classes=(3, 8))
    assert fewer.class_names == ["3", "8"]
    assert set(fewer.labels.tolist()) == {0, 1}
    assert len(fewer) < len(Digits()) < len(Digits(train=True))
    pixels, _ = Digits(noise=0.3).batch(torch.arange(4))
    assert not torch.equal(pixels, Digits().batch(torch.arange(4))[0])


def test_classes_that_were_not_trained_on_are_told_before_the_training():
    def images(train=False, classes=(1, 2)):
        return Digits(train, classes=(1, 2, 3) if train else classes)

    whole = partial(images, classes=(1, 2, 3))
    with pytest.raises(UserError, match="test images: there is none of the class 3"):
        Vision(model=None, images=images).prepare()
    with pytest.raises(UserError, match="few: no training image has the class 4"):
        Vision(model=None, images=whole, shifted={"few": partial(Digits, classes=(4,))}).prepare()


def test_accuracy_elsewhere_is_among_the_set_s_classes_and_doubt_ranks_the_outliers():
    class AlwaysThree(torch.nn.Module):
        def forward(self, images):
            logits = torch.zeros(len(images), 10)
            logits[:, 3] = 5 * images.flatten(1).mean(1)  # less sure of dark images
            return logits

    class Dark(Digits):
        def batch(self, indices):
            images, labels = super().batch(indices)
            return images / 10, labels

    part = Vision(
        model=None, images=Digits, shifted={"few": partial(Digits, classes=(3, 8))},
        outliers={"same": Digits, "dark": Dark}, eval_batch_size=50,
    )  # fmt: skip
    part.prepare()
    few = Digits(classes=(3, 8))
    found = list(part._elsewhere(AlwaysThree(), part.data[1], torch.device("cpu")))
    assert found[0].value == pytest.approx(float((few.labels == 0).float().mean()))
    assert len(found[0].samples) == len(few)
    assert found[1].value == pytest.approx(0.5, abs=0.01)  # outliers like the test images
    assert found[2].value == pytest.approx(1)
