"""The parts that the smoke profile does not reach: MultiBench files, AlexNets, real pickles."""

import pickle

import numpy as np
import pytest
import torch

from ritornello.common.errors import UserError
from ritornello.common.runs import Cell, CellContext
from ritornello.experiments.comm.affect import Affect, flagged_sequences, load_arrays
from ritornello.experiments.comm.arms import CoMMArm, CrossArm
from ritornello.experiments.comm.pictures import alexnet_architecture
from ritornello.experiments.comm.training import Recipe

WIDTHS = {"vision": 6, "audio": 3, "text": 4}


@pytest.fixture
def multibench(tmp_path):
    """A file as MultiBench's, with random numbers."""
    rng = np.random.default_rng(0)
    splits = {}
    for split, count in (("train", 24), ("valid", 4), ("test", 12)):
        arrays = {m: rng.normal(size=(count, 7, w)) for m, w in WIDTHS.items()}
        arrays["text"][:, :2] = 0  # speech starts at the third step
        labels = rng.normal(size=(count, 1, 1))
        splits[split] = arrays | {"labels": labels, "id": np.arange(count)}
    file = tmp_path / "mosi_raw.pkl"
    file.write_bytes(pickle.dumps(splits))
    return tmp_path


@pytest.mark.parametrize("arm", [CoMMArm(head_hidden=16, head_dim=8), CrossArm(embed_dim=8)])
def test_multibench_trains_and_is_probed(multibench, tmp_path, arm):
    part = Affect(
        Recipe(steps=2, batch=6),
        {"costs": [1.0]},
        folder=str(multibench),
        modalities=("vision", "audio", "text"),
        datasets=("mosi",),
    )
    part.prepare()
    cell = Cell("affect", "arm", 0, {"dataset": "mosi"})
    (tmp_path / "artifacts").mkdir()
    context = CellContext(tmp_path / "scratch", tmp_path / "artifacts")
    (measured,) = part.measure(arm, cell, context)
    assert measured.metric == "accuracy"
    assert len(measured.samples) == 12
    assert "mosi_raw.pkl" in context.inputs


def test_sequences_start_at_the_first_word():
    values = np.arange(10, dtype=float).reshape(1, 5, 2)
    text = np.array([[[0.0], [0.0], [1.0], [0.0], [2.0]]])
    out = flagged_sequences(values, text, steps=4)
    assert out[0, :, -1].tolist() == [1, 1, 1, 0]
    assert out[0, :3, :-1].tolist() == values[0, 2:].tolist()


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("run",)

    file = tmp_path / "evil.pkl"
    file.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match="only numpy arrays"):
        load_arrays(file)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (Affect(Recipe(steps=1)), "settings.multibench"),
        (Affect(Recipe(steps=1), folder="nowhere"), "there is no"),
        (Affect(Recipe(steps=1), folder=".", datasets=("imdb",)), "dataset"),
    ],
)
def test_missing_files_are_told_before_work(part, named):
    with pytest.raises(UserError, match=named):
        part.prepare()


def test_the_papers_encoders_yield_36_tokens_of_width_512():
    architecture = alexnet_architecture()
    with torch.no_grad():
        fused = architecture.fused()
        tokens, _ = fused.tokens([torch.zeros(1, 3, 224, 224)] * 2)
    assert [t.shape for t in tokens] == [(1, 36, 512)] * 2
    assert fused.encoders[0] is not fused.encoders[1]
