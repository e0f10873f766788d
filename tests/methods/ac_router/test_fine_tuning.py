"""Fine-tuning on labelled texts: files read, padding, resume, what is learnt."""

import copy
import json
from functools import partial

import pandas as pd
import pytest
import torch

from ritornello.common.moe import SMoERouter
from ritornello.common.reporting import Results
from ritornello.common.runs import Cell, CellContext, UserError
from ritornello.experiments.ac_router.corpus import Corpus, Vocabulary
from ritornello.experiments.ac_router.figures import figures
from ritornello.experiments.ac_router.fine_tuning import (
    FineTuning,
    TextClassifier,
    TextSet,
    spaced,
)
from ritornello.experiments.ac_router.language import LanguageModel
from ritornello.experiments.ac_router.routers import Routers
from ritornello.methods.ac_router import ACRouter
from ritornello.methods.ac_router.baselines import SMoEDropoutRouter

ADAPTIVE = Routers(SMoERouter, ACRouter)
GROWING = Routers(partial(SMoEDropoutRouter, top_k=1))


def corpus() -> Corpus:
    line = "a good film and a bad film , the good one is good and the bad one bad\n"
    return Corpus(line * 40, line * 10)


@pytest.fixture
def sets(tmp_path):
    """The label is told by one word; .jsonl with numbers and .csv with names."""
    rows = [(f"the film is {word} .", label) for word, label in (("good", 1), ("bad", 0))] * 16
    folder = tmp_path / "jsonl"
    folder.mkdir()
    for split, chosen in (("train", rows), ("dev", rows[:3]), ("test", rows[:10])):
        lines = [json.dumps({"sentence": text, "label": label}) for text, label in chosen]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    for split, chosen in (("train", rows), ("test", rows[:10])):
        names = [(text, "yes" if label else "no") for text, label in chosen]
        (tmp_path / "csv" / split).mkdir(parents=True)
        table = pd.DataFrame(names, columns=["text", "category"])
        table.to_csv(tmp_path / "csv" / split / "0000.csv", index=False)
    return {
        "numbers": TextSet(str(folder), text="sentence", epochs=12, learning_rate=1e-2),
        "names": TextSet(str(tmp_path / "csv"), label="category", epochs=1, learning_rate=1e-2),
    }


def part(sets) -> LanguageModel:
    return LanguageModel(
        corpus=corpus,
        unit="word",
        d_model=8,
        hidden=8,
        num_heads=2,
        num_experts=4,
        span=8,
        segment=8,
        batch_size=4,
        steps=6,
        checkpoint_every=2,
        eval_batch_size=2,
        dropout=0.0,
        fine_tuning=FineTuning(sets, batch_size=8),
    )


def measure(part, arm, folder):
    for name in ("scratch", "artifacts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    context = CellContext(folder / "scratch", folder / "artifacts")
    found = part.measure(arm, Cell("part", "arm", 0), context)
    return {(m.metric, *m.coordinates.items()): m for m in found}


@pytest.mark.parametrize("arm", [ADAPTIVE, GROWING], ids=["ac", "dropout"])
def test_the_classifier_learns_and_an_interrupted_one_ends_alike(arm, sets, tmp_path, monkeypatch):
    whole = measure(part(sets), arm, tmp_path / "whole")
    learnt = whole["fine_tuned_accuracy", ("task", "numbers")]
    assert len(learnt.samples) == 10
    assert learnt.value == sum(learnt.samples) / 10 == 1
    original = FineTuning._reader

    def failing(self, *arguments):
        read = original(self, *arguments)

        def killed(number):
            if number >= 3:
                raise InterruptedError
            return read(number)

        return killed

    with monkeypatch.context() as patch:
        patch.setattr(FineTuning, "_reader", failing)
        with pytest.raises(InterruptedError):
            measure(part(sets), arm, tmp_path / "broken")
    assert (tmp_path / "broken/scratch/numbers/training.pt").is_file()
    again = measure(part(sets), arm, tmp_path / "broken")
    assert {k: m.value for k, m in again.items()} == {k: m.value for k, m in whole.items()}


def test_the_pretrained_model_stays_and_padding_changes_nothing():
    torch.manual_seed(0)
    model = part({}).build(ADAPTIVE).eval()
    before = copy.deepcopy(model.state_dict())
    classifier = TextClassifier(model, 3).eval()
    tokens, mask = torch.randint(5, (2, 6)), torch.ones(2, 6, dtype=torch.bool)
    logits = classifier(tokens, mask)
    assert logits.shape == (2, 3)
    wide = torch.nn.functional.pad(tokens, (0, 4), value=3)
    padded = classifier(wide, torch.nn.functional.pad(mask, (0, 4)))
    torch.testing.assert_close(padded, logits)
    logits.sum().backward()
    assert model.head.weight.grad is None
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_words_are_spaced_as_in_wikitext():
    assert spaced("I can't, can I?").split() == ["I", "can", "'t", ",", "can", "I", "?"]
    assert spaced(spaced("it 's done")).split() == ["it", "'s", "done"]
    vocabulary = Vocabulary.of("the film is good .\n", "word")
    training, _, classes = FineTuning({}, max_tokens=3)._encoded(
        _Fixed([("the film is good.", "a"), ("film", "b")]), vocabulary
    )
    assert classes == 2
    assert [len(tokens) for tokens in training.tokens] == [3, 2]
    tokens, mask, labels = training.batch(torch.tensor([1, 0]))
    assert mask.tolist() == [[True, True, False], [True] * 3]
    assert labels.tolist() == [1, 0]
    assert tokens.shape == (2, 3)


class _Fixed(TextSet):
    def __init__(self, rows):
        super().__init__("fixed")
        self.rows = rows

    def load(self, split):
        return self.rows


def test_a_parquet_split_is_found_by_its_folder_and_bad_sets_are_named(tmp_path, sets):
    for split in ("train", "test"):
        (tmp_path / "hub" / "default" / split).mkdir(parents=True)
        table = pd.DataFrame({"text": ["one", "two"], "label": [0, 1 if split == "train" else -1]})
        table.to_parquet(tmp_path / "hub" / "default" / split / "0000.parquet")
    hub = TextSet(str(tmp_path / "hub"))
    assert hub.load("train") == [("one", "0"), ("two", "1")]
    with pytest.raises(UserError, match="label '-1' of test"):
        FineTuning({})._encoded(hub, Vocabulary(None))
    with pytest.raises(UserError, match="of the split validation"):
        hub.load("validation")
    with pytest.raises(UserError, match="columns 'text' and 'label'"):
        TextSet(sets["numbers"].source).load("train")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "train.tsv").write_text("text\tlabel\nNULL\t1\n \t0\n")
    with pytest.raises(UserError, match="row 1 of train has no text"):
        TextSet(str(empty)).load("train")
    with pytest.raises(UserError, match="there is no folder"):
        TextSet(str(tmp_path / "absent")).load("train")


def test_fine_tuned_accuracy_is_drawn(tmp_path):
    measured = [
        ("train_loss", 1.0, {"step": 1}),
        ("load_entropy", 0.9, {"layer": 1}),
        ("accuracy", 0.5, {"attack": "clean"}),
        ("fine_tuned_accuracy", 0.7, {"task": "sst2"}),
        ("fine_tuned_accuracy", 0.4, {"task": "sst5"}),
    ]
    rows = [
        {"part": "glam", "arm": arm, "seed": 0, "metric": metric, "value": value, **place}
        for arm in ("smoe", "ac")
        for metric, value, place in measured
    ]
    drawn = {f.name: f for f in figures(Results(pd.DataFrame(rows), tmp_path))}
    bars = drawn["glam_fine_tuned_accuracy"].figure.axes[0].patches
    assert [bar.get_height() for bar in bars] == [0.7, 0.4] * 2
