"""The parts that the smoke profile does not reach: MultiBench files, AlexNets, real pickles."""

import json
import pickle
import sys

import numpy as np
import pytest
import torch

from ritornello.common.errors import UserError
from ritornello.common.runs import Cell, CellContext
from ritornello.experiments.comm.affect import Affect, flagged_sequences, load_arrays
from ritornello.experiments.comm.arms import (
    CoMMArm,
    CrossArm,
    FactorCLSupArm,
    FineTunedArm,
    SupervisedArm,
)
from ritornello.experiments.comm.health import Health
from ritornello.experiments.comm.pictures import alexnet_architecture
from ritornello.experiments.comm.robots import Forces, Robots
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
def test_multibench_trains_and_is_probed(multibench, context, arm):
    part = Affect(
        Recipe(steps=2, batch=6),
        {"costs": [1.0]},
        folder=str(multibench),
        modalities=("vision", "audio", "text"),
        datasets=("mosi",),
    )
    part.prepare()
    cell = Cell("affect", "arm", 0, {"dataset": "mosi"})
    (measured,) = part.measure(arm, cell, context)
    assert measured.metric == "accuracy"
    assert len(measured.samples) == 12
    assert "mosi_raw.pkl" in context.inputs


@pytest.mark.parametrize("protocol", [2, 4])
def test_pickles_of_any_age_are_read(tmp_path, protocol):
    arrays = {"labels": np.ones((2, 1)), "id": np.array(["a", "b"]), "odd": np.array(["c"], object)}
    file = tmp_path / "humor.pkl"
    file.write_bytes(pickle.dumps({"train": arrays}, protocol=protocol))
    assert load_arrays(file)["train"]["id"].tolist() == ["a", "b"]


def test_epochs_count_passes_through_the_set_in_hand(multibench, context, monkeypatch):
    part = Affect(Recipe(steps=1, batch=6), folder=str(multibench), datasets=("mosi",), epochs=3)
    seen = []
    monkeypatch.setattr(part, "train", lambda *args, steps, **more: seen.append(steps) or 1 / 0)
    arm, cell = CrossArm(embed_dim=8), Cell("affect", "arm", 0, {"dataset": "mosi"})
    with pytest.raises(ZeroDivisionError):
        list(part.measure(arm, cell, context))
    rows = len(load_arrays(multibench / "mosi_raw.pkl")["train"]["labels"])
    assert seen == [3 * (rows // 6)]


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


def mimic_file(folder, stays=40, **changed):
    """A file in the layout of MultiBench's im.pk, with random numbers."""
    rng = np.random.default_rng(0)
    arrays = {
        "adm_features_all": rng.normal(size=(stays, 5)),
        "ep_tdata": rng.normal(3, 2, size=(stays, 24, 12)),
        "adm_labels_all": rng.integers(0, 2, (stays, 6)),
        "y_icd9": rng.integers(0, 2, (stays, 20)),
    }
    arrays["ep_tdata"][0, 0, 0] = np.inf
    file = folder / "im.pk"
    file.write_bytes(pickle.dumps(arrays | changed))
    return str(file)


@pytest.mark.parametrize(
    ("arm", "task"),
    [
        (CoMMArm(head_hidden=16, head_dim=8), 7),
        (FactorCLSupArm(embed_dim=8, critic_hidden=8), -1),
        (FineTunedArm(head_hidden=16, head_dim=8), 7),
        (SupervisedArm(), -1),
    ],
)
def test_stays_train_and_are_probed(tmp_path, context, arm, task):
    part = Health(Recipe(steps=2, batch=8), {"costs": [1.0]}, file=mimic_file(tmp_path), task=task)
    part.width = 16
    part.prepare()
    (measured,) = part.measure(arm, Cell("health", "arm", 0), context)
    assert len(measured.samples) == 4
    assert "im.pk" in context.inputs


def test_stays_are_standardised_and_split_as_in_multibench(tmp_path):
    deaths = np.zeros((40, 6))
    deaths[:, 3] = 1
    part = Health(Recipe(steps=1), file=mimic_file(tmp_path, adm_labels_all=deaths), task=-1)
    (table, signs), classes = part.splits["train"]
    assert (table.shape, signs.shape) == ((32, 5), (32, 24, 12))
    assert classes.unique().tolist() == [3]
    everything = torch.cat([signs, part.splits["test"][0][1]])
    assert bool(everything.isfinite().all())
    assert everything.mean().item() == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(
    ("given", "named"),
    [({}, r"settings\.mimic"), ({"file": "nowhere/im.pk"}, "PhysioNet"), ({"task": 20}, "task")],
)
def test_missing_stays_are_told_before_work(given, named):
    with pytest.raises(UserError, match=named):
        Health(Recipe(steps=1), **given).prepare()


def test_a_file_of_another_layout_is_told(tmp_path):
    file = mimic_file(tmp_path, ep_tdata=np.zeros((40, 24, 11)))
    with pytest.raises(UserError, match="ep_tdata"):
        _ = Health(Recipe(steps=1), file=file).splits


@pytest.fixture
def episodes(tmp_path):
    """Three episodes of seven steps as MultiBench's, with random numbers."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    for number in range(3):
        with h5py.File(tmp_path / f"triangle_{number}_1000.h5", "w") as file:
            file["image"] = rng.integers(0, 256, (7, 64, 64, 3), dtype=np.uint8)
            file["ee_forces_continuous"] = rng.normal(size=(7, 50, 6))
            file["proprio"] = rng.normal(size=(7, 10)).astype(np.float32)
            file["contact"] = np.arange(7)[:, None] % 2 * np.ones((7, 50))
    return tmp_path


@pytest.mark.parametrize(
    ("arm", "task", "modalities", "metric"),
    [
        (CoMMArm(head_hidden=16, head_dim=8), "contact", ("image", "force", "proprio"), "accuracy"),
        (CoMMArm(head_hidden=16, head_dim=8), "effector", ("image", "force"), "error"),
        (FactorCLSupArm(embed_dim=8, critic_hidden=8), "effector", ("image", "force"), "error"),
        (FineTunedArm(head_hidden=16, head_dim=8), "effector", ("image", "force"), "error"),
    ],
)
def test_robots_train_and_are_probed(episodes, context, arm, task, modalities, metric):
    part = Robots(
        Recipe(steps=1, batch=4),
        {"costs": [1.0]},
        folder=str(episodes),
        task=task,
        modalities=modalities,
        width=16,
    )
    part.prepare()
    (measured,) = part.measure(arm, Cell("robots", "arm", 0), context)
    assert measured.metric == metric
    assert len(measured.samples) == 6
    assert len(context.inputs) == 3


def test_targets_are_one_step_ahead(episodes):
    file = next(episodes.glob("*_0_*.h5"))
    inputs, contact = Robots(Recipe(steps=1), modalities=("force", "proprio")).episode(file)
    assert contact.tolist() == [1, 0, 1, 0, 1, 0]
    assert [x.shape for x in inputs] == [(6, 32, 6), (6, 8)]
    (_, joints), pose = Robots(
        Recipe(steps=1), task="effector", modalities=("image", "proprio")
    ).episode(file)
    assert torch.equal(joints[1:, :4], pose[:-1])


def test_the_vector_of_forces_reads_all_readings():
    x = torch.randn(2, 32, 6, requires_grad=True)
    out = Forces(5)(x)
    assert out.shape == (2, 5)
    out.sum().backward()
    assert bool((x.grad != 0).all())


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, r"settings\.vision_touch"),
        ({"folder": "nowhere"}, r"\.h5"),
        ({"task": "pose"}, "task"),
        ({"modalities": ("depth",)}, "modalities"),
    ],
)
def test_missing_robots_are_told_before_work(given, named):
    with pytest.raises(UserError, match=named):
        Robots(Recipe(steps=1), **given).prepare()


def test_reading_robots_names_the_extra_that_brings_h5py(tmp_path, monkeypatch):
    for number in range(2):
        (tmp_path / f"{number}.h5").touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"ritornello\[vision\]"):
        Robots(Recipe(steps=1), folder=str(tmp_path)).prepare()


def test_the_papers_encoders_yield_36_tokens_of_width_512():
    architecture = alexnet_architecture()
    with torch.no_grad():
        fused = architecture.fused()
        tokens, _ = fused.tokens([torch.zeros(1, 3, 224, 224)] * 2)
    assert [t.shape for t in tokens] == [(1, 36, 512)] * 2
    assert fused.encoders[0] is not fused.encoders[1]


def test_fine_tuning_takes_up_the_trained_encoder(multibench, tmp_path, monkeypatch):
    """Its second stage starts from the first one's weights, and goes on from its own checkpoint."""
    cell = Cell("affect", "arm", 0, {"dataset": "mosi"})
    arm, curves = FineTunedArm(head_hidden=16, head_dim=8), []
    for number, every in enumerate((0, 1)):
        folder = tmp_path / str(number)
        (folder / "artifacts").mkdir(parents=True)
        context = CellContext(folder / "scratch", folder / "artifacts")
        context.scratch.mkdir()
        recipe = Recipe(steps=2, batch=6, checkpoint_every=every, log_every=1)
        part = Affect(recipe, {"costs": [1.0]}, folder=str(multibench), datasets=("mosi",))
        list(part.measure(arm, cell, context))
        lines = (folder / "artifacts" / "log.jsonl").read_text().splitlines()
        curves.append([json.loads(line) for line in lines])
        if every:  # a run killed before the second stage's end
            (context.scratch / "stage_1" / "training.pt").unlink()
            list(part.measure(arm, cell, context))
            again = (folder / "artifacts" / "log.jsonl").read_text().splitlines()[len(lines) :]
            assert [json.loads(line) for line in again] == curves[0][2:]
    assert curves[0] == curves[1]
    assert [row["step"] for row in curves[0]] == [0, 1, 2, 3]
