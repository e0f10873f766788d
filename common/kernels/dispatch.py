"""Which implementation of an operator runs: the argument, else the environment, else automatic."""

import functools
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

BACKEND_VARIABLE = "RITORNELLO_BACKEND"


def choose_backend(
    operator: str,
    requested: str | None,
    available: Mapping[str, str | None],
    device: torch.device | str,
) -> str:
    """Names the backend that runs `operator` on `device`.

    A backend that is asked for, by argument or by the environment variable `RITORNELLO_BACKEND`,
    either runs or raises: nothing else is ever taken in its place.

    Args:
        operator: name of the operator, for messages.
        requested: the caller's `backend` argument; None leaves the choice open.
        available: every backend the operator has, the preferred one first, each with the reason why
            it cannot run here, or None when it can.
        device: where the inputs lie, for messages.

    Returns:
        A key of `available`.

    Raises:
        ValueError: the requested backend is unknown to the operator or cannot run on `device`.
    """
    source = f"backend={requested!r}"
    if requested is None:
        requested = os.environ.get(BACKEND_VARIABLE) or None
        source = f"{BACKEND_VARIABLE}={requested}"
    if requested is None:
        # Triton's interpreter is for tests: on the CPU it is never taken unasked.
        unasked = "triton" if torch.device(device).type == "cpu" else None
        return next(n for n, reason in available.items() if reason is None and n != unasked)
    if requested not in available:
        raise ValueError(f"{source}: {operator} has the backends {', '.join(available)}")
    if (reason := available[requested]) is not None:
        usable = ", ".join(name for name, why in available.items() if why is None)
        raise ValueError(
            f"{source}: {operator} cannot run there on device {device}: {reason}; usable: {usable}"
        )
    return requested


def triton_obstacle(device: torch.device | str) -> str | None:
    """Why Triton kernels cannot run on tensors of `device`; None when they can.

    On the CPU they run in Triton's interpreter, which has to be asked for: TRITON_INTERPRET=1 set
    before Triton is first imported.
    """
    if not _triton_installed():
        return "the package triton is not installed"
    if torch.device(device).type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return "it needs a CUDA device, or TRITON_INTERPRET=1 for Triton's interpreter"


@functools.cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def device_obstacle(device: torch.device | str, required: str) -> str | None:
    """Why a backend written for device type `required` cannot run on `device`; None when it can."""
    kind = torch.device(device).type
    return None if kind == required else f"it needs a {required} device, the input is on {kind}"


def on_own_device(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Launches Triton kernels where the first tensor lies: unguided they go to the current GPU."""

    @functools.wraps(launch)
    def guarded(first: Tensor, *others: Any, **options: Any) -> Any:
        if not first.is_cuda:
            return launch(first, *others, **options)
        with torch.cuda.device(first.device):
            return launch(first, *others, **options)

    return guarded


def carries_tangent(*tensors: Tensor) -> bool:
    """Whether one of them is a dual tensor, whose tangent torch's custom operators drop."""
    if torch.compiler.is_compiling():
        return False
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def refuse_tangents(operator: str, *tensors: Tensor) -> None:
    """Raises RuntimeError on forward-mode derivatives, which would be zero without a word."""
    if carries_tangent(*tensors):
        raise RuntimeError(f"no forward-mode derivative: {operator}")
