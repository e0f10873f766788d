"""The choice of a backend: argument, environment, the first that can run; what operators lack."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from ritornello.common.kernels.dispatch import (
    BACKEND_VARIABLE,
    choose_backend,
    device_obstacle,
    on_own_device,
    triton_obstacle,
)
from ritornello.common.kernels.gather_gemm import gather_combine, gather_linear
from ritornello.common.kernels.hadamard import hadamard_transform
from ritornello.common.moe.grouped import grouped_matmul

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


@pytest.mark.parametrize(
    "product",
    [
        hadamard_transform,
        lambda x: gather_linear(x, torch.ones(5, 12), torch.tensor([0, 3])),
        lambda x: gather_combine(x, torch.ones(12, 5), torch.arange(12)),
        lambda x: grouped_matmul(x, torch.ones(1, 12, 4), torch.tensor([2], dtype=torch.int32)),
    ],
)
def test_forward_mode_is_refused_where_it_would_be_zero(product) -> None:
    x = torch.ones(2, 12)
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.jvp(product, (x,), (x,))


def test_kernels_are_launched_on_the_gpu_of_their_input(monkeypatch):
    entered = []

    @contextmanager
    def device(place):
        entered.append(place)
        yield

    monkeypatch.setattr(torch.cuda, "device", device)
    launch = on_own_device(lambda first, second: second)
    second_gpu = torch.device("cuda", 1)
    assert launch(SimpleNamespace(is_cuda=True, device=second_gpu), 3) == 3
    assert launch(torch.ones(2), 4) == 4
    assert entered == [second_gpu]
