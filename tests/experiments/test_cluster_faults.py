"""A hundred kills at random moments, over several papers: each ends with the unbroken numbers."""

import importlib
import io
import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ritornello.experiments.app import compose_config, execute, resolve

PAPERS = ("daily_dilemmas", "model_equality_testing", "topograph", "umup")
KILLS = 25
# What a clock says is no number of the experiment.
TIMES = ("second", "time", "speed", "_ms", "growth_exponent")


def launch(paper: str, outputs: Path) -> int:
    """Runs the paper in a forked process, which has everything imported already."""
    for module in ("lightning.pytorch", "transformers", "ritornello.common.reporting.terminal"):
        importlib.import_module(module)
    importlib.import_module(f"ritornello.experiments.{paper}.experiment")
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        sys.stdout = sys.stderr = io.StringIO()
        status = execute(
            resolve(compose_config([f"experiment={paper}/smoke", f"outputs={outputs}"]))
        )
    finally:
        os._exit(status)


def ended(child: int, deadline: float) -> int | None:
    """The child's exit status, or None if it still runs at the deadline."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def numbers(outputs: Path) -> dict[str, list]:
    found = {}
    for file in outputs.glob("*/smoke/*/cells/*.json"):
        record = json.loads(file.read_text())["record"]
        found[file.name] = [
            (m["metric"], m["coordinates"], m["value"], m["samples"])
            for m in record["measurements"]
            if not any(word in f"{m['metric']} {m['unit']}" for word in TIMES)
        ]
    return found


def assert_same(found: Any, expected: Any) -> None:
    """Equal, but for the rounding of a batch that was divided otherwise after a kill."""
    if isinstance(expected, float):
        assert math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-4) or (
            math.isnan(found) and math.isnan(expected)
        )
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_kills_at_random_moments_change_no_number(paper, tmp_path):
    begun = time.monotonic()
    assert ended(launch(paper, tmp_path / "unbroken"), begun + 600) == 0
    span = time.monotonic() - begun
    expected = numbers(tmp_path / "unbroken")
    assert expected
    dice, kills, attempts = random.Random(paper), 0, 0
    while kills < KILLS:
        outputs, finished = tmp_path / f"broken-{attempts}", 0
        attempts += 1
        status = None
        while status is None:
            patience = dice.uniform(0, span / 3) if kills < KILLS else 600
            child = launch(paper, outputs)
            status = ended(child, time.monotonic() + patience)
            if status is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                kills += 1
                now = len(list(outputs.glob("*/smoke/*/cells/*.json")))
                assert now >= finished
                finished = now
        assert status == 0
        assert_same(numbers(outputs), expected)
        assert not list(outputs.glob("*/smoke/*/cells/*.damaged"))
