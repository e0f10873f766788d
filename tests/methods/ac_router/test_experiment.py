"""The trained parts: an interrupted run ends like an unbroken one; texts and tasks."""

from functools import partial
from pathlib import Path

import pytest
import torch

from ritornello.common.moe import SMoERouter
from ritornello.common.runs import Cell, CellContext, UserError
from ritornello.experiments.ac_router.corpus import Corpus, Vocabulary, streams, wikitext103
from ritornello.experiments.ac_router.language import LanguageModel
from ritornello.experiments.ac_router.regression import ClusterTask, Regression
from ritornello.experiments.ac_router.routers import Routers
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
    with pytest.raises(UserError, match="too few for 4 streams"):
        streams(torch.arange(5), 4)
