"""The trainer group: one experiment with one process and with two gives the same losses."""

import json

import pytest
import torch

from ritornello.common.errors import UserError
from ritornello.common.training import choose_trainer
from ritornello.experiments.app import build_plan, compose_config, execute, resolve, run_directory

COMMAND = ("experiment=umup/smoke", "only.parts=[low_precision]", "only.arms=[umup]")


@pytest.fixture(autouse=True)
def own_trainer():
    yield
    choose_trainer({})


def config(*arguments):
    return resolve(compose_config([*COMMAND, *arguments]))


def validation_loss(folder, *arguments) -> float:
    chosen = config(*arguments, f"outputs={folder}")
    assert execute(chosen) == 0
    (file,) = (run_directory(chosen).path / "cells").glob("*.json")
    measurements = json.loads(file.read_text())["record"]["measurements"]
    (value,) = [m["value"] for m in measurements if m["metric"] == "validation_loss"]
    return value


def test_two_processes_measure_what_one_does(tmp_path):
    alone = validation_loss(tmp_path, "+trainer.accumulate=2")
    for trainer in ("ddp", "fsdp"):
        assert validation_loss(tmp_path, f"trainer={trainer}") == pytest.approx(alone, rel=1e-5)


def test_a_run_of_the_papers_own_trainer_keeps_its_directory():
    """The choice is part of a run's identity; none leaves the identity as it was."""
    own, chosen = config(), config("trainer=ddp")
    assert (
        run_directory(own).path
        == run_directory({k: v for k, v in own.items() if k != "trainer"}).path
    )
    assert run_directory(own).path != run_directory(chosen).path


def test_the_next_plan_forgets_the_last_ones_trainer():
    from ritornello.common.training import fit

    build_plan(config("trainer=ddp", "trainer.devices=0"))
    with pytest.raises(ValueError, match="devices"):
        fit(torch.nn.Linear(1, 1), None, steps=1)  # type: ignore[arg-type]
    build_plan(config("+trainer.accumulate=0"))
    with pytest.raises(ValueError, match="accumulate"):
        fit(torch.nn.Linear(1, 1), None, steps=1)  # type: ignore[arg-type]


def test_an_unknown_trainer_is_told():
    with pytest.raises(UserError, match="trainer"):
        config("trainer=horse")
    for key in ("colour", "max_steps"):
        with pytest.raises(UserError, match=key):
            build_plan(config(f"+trainer.{key}=3"))
