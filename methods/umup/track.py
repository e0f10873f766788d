"""RMS of activations, gradients and weights by tensor (sec. 5.4), and the coordinate check."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import torch
from torch import Tensor, nn

Kind = Literal["activation", "gradient", "weight", "weight_gradient"]


@dataclass(frozen=True)
class Scale:
    """RMS of one tensor of one module."""

    name: str
    kind: Kind
    rms: float


def rms(tensor: Tensor) -> float:
    """Root mean square, in fp32 or better."""
    tensor = tensor.detach()
    wide = tensor if tensor.dtype == torch.float64 else tensor.float()
    return float(wide.square().mean().sqrt())


class ScaleTracker:
    """Records RMS values by hooks while it is entered.

    ```python
    with ScaleTracker(model) as tracker:
        model.loss(ids, targets).backward()
    tracker.scales()
    ```

    Args:
        model: any module.
        select: which modules to watch, by name and module; those without children by default.
        keep: also keep the last activations and gradients (detached), for histograms.
    """

    def __init__(
        self,
        model: nn.Module,
        select: Callable[[str, nn.Module], bool] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self.model, self.keep = model, keep
        self.select = select or (lambda _, module: next(module.children(), None) is None)
        self.tensors: dict[tuple[str, Kind], Tensor] = {}
        self._seen: dict[tuple[str, Kind], float] = {}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        for name, module in self.model.named_modules():
            if self.select(name, module):
                self._handles.append(module.register_forward_hook(self._hook(name)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str) -> Callable:
        def record(module: nn.Module, inputs: tuple, output: Tensor) -> None:
            if not isinstance(output, Tensor):
                return
            self._record(name, "activation", output)
            if output.requires_grad:
                output.register_hook(lambda grad: self._record(name, "gradient", grad))

        return record

    def _record(self, name: str, kind: Kind, tensor: Tensor) -> None:
        self._seen[name, kind] = rms(tensor)
        if self.keep:
            self.tensors[name, kind] = tensor.detach()

    def scales(self) -> list[Scale]:
        """What was seen last, with the parameters' present values and gradients."""
        found = [Scale(name, kind, value) for (name, kind), value in self._seen.items()]
        for name, parameter in self.model.named_parameters():
            found.append(Scale(name, "weight", rms(parameter)))
            if parameter.grad is not None:
                found.append(Scale(name, "weight_gradient", rms(parameter.grad)))
        return found


def coordinate_check(
    build: Callable[[int], tuple[nn.Module, torch.optim.Optimizer]],
    widths: Sequence[int],
    loss: Callable[[nn.Module], Tensor],
    outputs: Callable[[nn.Module], Tensor],
    *,
    steps: int = 1,
) -> dict[int, float]:
    """RMS change of the outputs after `steps` updates, by width (Yang et al., app. D.1).

    Under muP and u-muP it does not depend on the width; under SP it grows.

    Args:
        build: model and optimiser of a width.
        widths: widths to try.
        loss: loss of a model on the check's batch.
        outputs: outputs of a model on the check's batch.
        steps: updates before the second look.
    """
    changes = {}
    for width in widths:
        model, optimizer = build(width)
        with torch.no_grad():
            before = outputs(model)
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
        with torch.no_grad():
            changes[width] = rms(outputs(model) - before)
    return changes


def exponent_histogram(tensor: Tensor, low: int = -40, high: int = 10) -> dict[int, float]:
    """Share of elements by binary exponent, those outside [low, high] in the end bins.

    Zeros count in the lowest bin.
    """
    exponents = torch.frexp(tensor.detach().float().flatten())[1] - 1
    exponents = torch.where(tensor.flatten() == 0, low, exponents).clamp(low, high)
    counts = torch.bincount(exponents - low, minlength=high - low + 1)
    return {low + i: float(count) / tensor.numel() for i, count in enumerate(counts)}
