"""CAV2vec's profiles beyond the common three, and the grid of corruptions."""

import wave
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from ritornello.common.errors import UserError
from ritornello.common.runs import Cell
from ritornello.common.training import choose_trainer
from ritornello.experiments.app import build_plan, compose_config, resolve
from ritornello.experiments.cav2vec.data import LRS3Data, SyntheticData, recognition_grid
from ritornello.experiments.cav2vec.experiment import Recognition
from ritornello.experiments.cav2vec.stages import Recipe
from ritornello.methods.cav2vec import AVHubertConfig, AVHubertModel


@pytest.fixture(autouse=True)
def own_trainer():
    yield
    choose_trainer({})


def recognition(profile: str) -> Recognition:
    config = compose_config([f"experiment=cav2vec/{profile}", "device=cpu"])
    plan = build_plan(resolve(config))
    assert plan.profile == profile
    arms = {"cav2vec", "avhubert", "av2vec", "av_data2vec", "av_relscore", "acp_only", "vcp_only"}
    assert arms < set(plan.parts["recognition"].arms)
    return plan.parts["recognition"].measure


def test_the_papers_profile_has_its_gpus_batches_and_grid():
    part = recognition("paper")
    stages = part.stages
    assert {**stages.trainer} == {
        "strategy": "ddp_find_unused_parameters_true",
        "devices": 8,
        "accumulate": 1,
        "precision": "bf16-mixed",
    }
    for stage in (stages.uptraining, stages.finetuning):
        assert (stage.steps, stage.batch_size, stage.batch_frames) == (60_000, None, 1000)
    assert stages.uptraining.warmup_steps == 4800
    assert stages.finetuning.warmup_steps == pytest.approx(20_000, abs=5)
    assert stages.finetuning_encoder == {"layerdrop": 0.1, "activation_dropout": 0.1}
    assert list(part.ratios) == [10, 5, 0, -5, -10]


def test_thirty_hours_differ_in_the_labelled_clips_alone():
    full, low = recognition("paper"), recognition("paper_30h")
    assert (full.data.finetune, low.data.finetune) == ("train", "trainval")
    assert low.stages.uptraining == full.stages.uptraining
    assert low.stages.encoder == full.stages.encoder


def test_the_medium_profile_runs_without_a_checkpoint():
    stages = recognition("medium").stages
    assert stages.checkpoint is None
    assert stages.first is not None
    assert stages.encoder["embed_dim"] == 256
    assert stages.head == "ctc"


class Noises(SyntheticData):
    def noises(self, split, kind=None):
        assert split == "test"
        return [np.full(10, len(kind), np.int16)]


def test_the_grid_has_every_noise_ratio_picture_and_room():
    data = Noises(1, 1, 16, 2)
    kinds, ratios, pictures = ["babble", "music"], [5, -5], ["clean", "hands"]
    cells = list(recognition_grid(data, kinds, ratios, pictures, ["PARK"]))
    assert len(cells) == 1 + 2 * 2 * 2 + 2
    assert cells[0][0] == {"noise": "clean", "picture": "clean"}
    assert cells[0][1].mixer is None
    for place, condition in cells[1:]:
        assert condition.mixer.chunk is None
        assert condition.mixer.snr == place.get("snr_db", (-10, 10))
        assert (condition.corruptor is None) == (place["picture"] == "clean")
    assert {place["noise"] for place, _ in cells} == {"clean", "babble", "music", "room PARK"}


def test_recipes_name_known_tasks():
    with pytest.raises(ValueError, match="tasks must be taken from"):
        Recipe(("mlm", "acp2"))


@pytest.fixture
def copy_of_lrs3(tmp_path):
    """The files of a prepared copy, most of them empty."""
    spm = pytest.importorskip("sentencepiece", reason="the paper's tokens are sub-words")
    pytest.importorskip("av", reason="recordings are decoded with PyAV")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(["bin blue at f two now"] * 9),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=17,
        minloglevel=2,
    )
    noise = [f"noise/{of}/1.wav" for of in ("train/babble", "test/babble", "test/demand/CAFE")]
    patches = [f"{k}/{of}/1.png" for k in ("objects", "hands") for of in ("images", "masks")]
    clips = [f"v/{n}.{end}" for n in range(2) for end in ("mp4", "wav", "npy")]
    for name in (*noise, *patches, *clips):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in noise:
        with wave.open(str(tmp_path / name), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(np.arange(len(name), dtype=np.int16).tobytes())
    for split in ("train", "test"):
        lines = [f"{n}\tv/{n}.mp4\tv/{n}.wav\t9\t5760" for n in range(2)]
        (tmp_path / f"{split}.tsv").write_text("\n".join([str(tmp_path), *lines]) + "\n")
        (tmp_path / f"{split}.wrd").write_text("BIN BLUE\nAT F\n")
    (tmp_path / "train.km").write_text(("1 " * 8 + "\n") * 2)
    return tmp_path


def test_a_whole_copy_of_lrs3_is_taken(copy_of_lrs3):
    data = LRS3Data(str(copy_of_lrs3))
    data.check_files(["babble", "demand/CAFE"])
    assert len(data.noises("test", "demand/CAFE")[0]) == len("noise/test/demand/CAFE/1.wav")


def test_every_kind_of_noise_has_the_same_weight_in_training(copy_of_lrs3):
    for name in ("speech/1", "speech/2", "speech/3", "music/1"):
        file = copy_of_lrs3 / f"noise/train/{name}.wav"
        file.parent.mkdir(exist_ok=True)
        file.touch()
    drawn = LRS3Data(str(copy_of_lrs3)).noises("train").files
    assert Counter(file.parent.name for file in drawn) == {"babble": 3, "music": 3, "speech": 3}
    assert len(set(drawn)) == 5


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train.km", None, "has no train.km"),
        ("train.km", "1 2 3\n" * 2, "clip 0 has 3 and 9"),
        ("train.km", "1 x\n" * 2, "whole numbers"),
        ("train.km", "1 2\n", "a line for every clip"),
        ("test.wrd", "BIN\n", "the same clips"),
        ("test.tsv", "", "the same clips"),
        ("test.tsv", "/nowhere\n0\tv/0.mp4\tv/0.wav\t9\n1\ta\tb\t9\n", r"test.tsv.* /nowhere/v/0"),
        ("test.tsv", "/\n0\tv/0.mp4\tv/0.wav\tnine\n1\ta\tb\t9\n", "id, video, audio, frames"),
        ("v/1.npy", None, r"v/1\.npy \(1 in all\)"),
        ("v/1.wav", None, r"v/1\.wav \(1 in all\)"),
        ("noise/test/demand/CAFE/1.wav", None, "noise files"),
        ("noise/train/babble/1.wav", None, "noise files"),
        ("noise/test/babble/1.wav", "hello", "1.wav"),
        ("hands/masks/1.png", None, "files of the same names"),
        ("spm.model", "hello", "a SentencePiece model"),
    ],
)
def test_what_is_wrong_with_a_copy_of_lrs3_is_told_before_training(
    copy_of_lrs3, file, content, message
):
    (copy_of_lrs3 / file).unlink()
    if content is not None:
        (copy_of_lrs3 / file).write_text(content)
    with pytest.raises(UserError, match=message):
        LRS3Data(str(copy_of_lrs3)).check_files(["babble", "demand/CAFE"])


def test_noises_manifests_and_pictures_that_are_not_there_are_named(copy_of_lrs3):
    data = LRS3Data(str(copy_of_lrs3))
    with pytest.raises(UserError, match="noise/test/demand/PARK"):
        data.check_files(["babble", "demand/PARK"])
    with pytest.raises(UserError, match=r"trainval\.tsv, trainval\.wrd"):
        LRS3Data(str(copy_of_lrs3), "trainval").check_files()
    with pytest.raises(UserError, match="noise must be one of babble"):
        SyntheticData(1, 1, 16, 2).check_files(["rain"])


def test_the_published_file_must_have_the_configured_sizes(tmp_path):
    stages = recognition("paper").stages
    file = tmp_path / "large.pt"
    model = AVHubertModel(AVHubertConfig.tiny())
    settings = {"model": {"encoder_attention_heads": 4}}
    torch.save({"cfg": settings, "model": model.state_dict()}, file)
    tiny = {k: v for k, v in model.config.to_dict().items() if k in stages.encoder}
    objective = {"top_k": 2, "final_dim": 16}
    replace(stages, checkpoint=str(file), encoder=tiny, objective=objective).check_files()
    with pytest.raises(UserError, match=r"num_layers=2 \(3 in the file\)"):
        replace(
            stages, checkpoint=str(file), encoder=tiny | {"num_layers": 2}, objective=objective
        ).check_files()
    file.write_text("hello")
    with pytest.raises(UserError, match="cannot be read"):
        replace(stages, checkpoint=str(file)).check_files()
    with pytest.raises(ValueError, match="top_k"):
        replace(stages, encoder=tiny)
    with pytest.raises(UserError, match=r"layerdrop=0 .* got 0\.05 and 0\.1"):
        replace(stages, trainer={"strategy": "fully_shard"})


@pytest.mark.parametrize(("head", "decoding"), [("ctc", {}), ("seq2seq", {"beam": 3})])
def test_a_beam_is_for_the_decoder_alone(monkeypatch, head, decoding):
    asked = []

    def grid(*_, decoding):
        asked.append(decoding)
        return pd.DataFrame([("clean", 50.0, [1], [2], [""])], columns=columns)

    columns = ["condition", "wer", "errors", "words", "hypotheses"]
    monkeypatch.setattr("ritornello.experiments.cav2vec.experiment.corruption_grid", grid)
    part = Recognition(
        SimpleNamespace(occluders=lambda _: {}, test=[], tokenizer=None),
        SimpleNamespace(head=head, recognizer=lambda *_: None),
        noises=(),
        decoding={"beam": 3},
    )
    cell = Cell("recognition", "cav2vec", 0, {})
    found = list(part.measure(Recipe(), cell, SimpleNamespace(scratch=Path())))
    assert [m.metric for m in found] == ["wer"]
    assert asked == [decoding]
