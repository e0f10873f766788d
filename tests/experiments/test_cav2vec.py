"""CAV2vec's profiles beyond the common three, and the grid of corruptions."""

import numpy as np
import pytest

from ritornello.common.errors import UserError
from ritornello.experiments.app import build_plan, compose_config, resolve
from ritornello.experiments.cav2vec.data import LRS3Data, SyntheticData, recognition_grid
from ritornello.experiments.cav2vec.experiment import Recognition
from ritornello.experiments.cav2vec.stages import Recipe


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


def test_what_is_missing_of_a_copy_of_lrs3_is_told_before_training(tmp_path):
    files = ["train.tsv", "train.wrd", "train.km", "test.tsv", "test.wrd", "spm.model"]
    folders = ["noise/train", "noise/test/babble"]
    folders += [f"{k}/{of}" for k in ("objects", "hands") for of in ("images", "masks")]
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    for file in files:
        (tmp_path / file).touch()
    data = LRS3Data(str(tmp_path))
    data.check_files(["babble"])
    with pytest.raises(UserError, match="noise/test/demand/PARK"):
        data.check_files(["babble", "demand/PARK"])
    with pytest.raises(UserError, match=r"trainval\.tsv, trainval\.wrd"):
        LRS3Data(str(tmp_path), "trainval").check_files()
