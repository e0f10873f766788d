"""The choice of a backend: argument, then environment, then the first that can run."""

import pytest

from ritornello.common.kernels.dispatch import (
    BACKEND_VARIABLE,
    choose_backend,
    device_obstacle,
    triton_obstacle,
)

AVAILABLE = {"triton": "it needs a CUDA device", "cpu": None, "reference": None}


@pytest.fixture(autouse=True)
def no_forced_backend(monkeypatch):
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_automatic_choice_is_the_first_backend_that_can_run():
    assert choose_backend("scan", None, AVAILABLE, "cpu") == "cpu"


def test_interpreter_is_never_chosen_unasked():
    ready = {"triton": None, "cpu": None}
    assert choose_backend("scan", None, ready, "cpu") == "cpu"
    assert choose_backend("scan", "triton", ready, "cpu") == "triton"
    assert choose_backend("scan", None, ready, "cuda") == "triton"


def test_argument_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv(BACKEND_VARIABLE, "cpu")
    assert choose_backend("scan", None, AVAILABLE, "cpu") == "cpu"
    assert choose_backend("scan", "reference", AVAILABLE, "cpu") == "reference"


def test_forced_backend_that_cannot_run_raises_with_the_reason(monkeypatch):
    with pytest.raises(ValueError, match=r"backend='triton'.*needs a CUDA device.*usable: cpu"):
        choose_backend("scan", "triton", AVAILABLE, "cpu")
    monkeypatch.setenv(BACKEND_VARIABLE, "triton")
    with pytest.raises(ValueError, match=f"{BACKEND_VARIABLE}=triton.*needs a CUDA device"):
        choose_backend("scan", None, AVAILABLE, "cpu")


def test_unknown_backend_raises_with_the_list():
    with pytest.raises(ValueError, match=r"'cutlass'.*triton, cpu, reference"):
        choose_backend("scan", "cutlass", AVAILABLE, "cpu")


def test_obstacles_name_what_is_missing(monkeypatch):
    assert device_obstacle("cpu", "cpu") is None
    assert "cuda" in device_obstacle("cuda:0", "cpu")
    assert triton_obstacle("cpu") is not None
    pytest.importorskip("triton", reason="triton is not installed")
    assert triton_obstacle("cuda") is None
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_obstacle("cpu") is None
