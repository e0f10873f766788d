"""Linear layers of which only chosen rows or columns take part."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ritornello.common.kernels.gather_gemm import gather_combine, gather_linear
from ritornello.common.kernels.packed_linear import (
    can_pack,
    can_use_packed,
    pack_weight,
    packed_linear,
)


def store_by_columns(linear: nn.Linear) -> None:
    """Lays the weight out by columns: a chosen column is contiguous, values are the same."""
    linear.weight.data = linear.weight.data.t().contiguous().t()


def store_by_rows(linear: nn.Linear) -> None:
    """The usual layout again."""
    linear.weight.data = linear.weight.data.contiguous()


def weight_identity(weight: Tensor) -> tuple:
    """Changes whenever the weight is replaced, moved, cast or written to."""
    version = 0 if weight.is_inference() else weight._version
    return weight.data_ptr(), version, weight.dtype, weight.device


class _ChosenWeight:
    """The chosen rows of a weight, copied and laid out again only when choice or weight change."""

    def __init__(self, *, transposed: bool) -> None:
        self._transposed = transposed  # rows hold inputs, not outputs
        self._held: tuple[tuple, Tensor, Tensor] | None = None
        self._packed: Tensor | None = None

    def __getstate__(self) -> dict:
        # oneDNN's layout can be neither copied nor pickled
        return self.__dict__ | {"_packed": None}

    def linear(self, x: Tensor, weight: Tensor, index: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b on the CPU, of the chosen outputs (inputs, where transposed)."""
        chosen = self._take(weight, index)
        chosen = chosen.t() if self._transposed else chosen
        if not (can_pack(chosen) and can_use_packed(x)):
            return F.linear(x, chosen, bias)
        if self._packed is None:
            self._packed = pack_weight(chosen, x[..., 0].numel())
        return packed_linear(x, self._packed, bias)

    def _take(self, weight: Tensor, index: Tensor) -> Tensor:
        identity, copy = weight_identity(weight), None
        if self._held is not None and self._held[0] == identity:
            _, known, copy = self._held
            if index is known or torch.equal(index, known):
                return copy
        # A copy made in inference mode could not be written to outside it.
        with torch.inference_mode(False):
            if copy is None or len(copy) != len(index):
                copy = weight.new_empty(len(index), weight.shape[1], requires_grad=False)
            torch.index_select(weight.detach(), 0, index, out=copy)
        self._held, self._packed = (identity, index, copy), None
        return copy


class KeptRows:
    """A linear layer that computes chosen outputs only."""

    def __init__(self, linear: nn.Linear) -> None:
        self.linear = linear
        self._chosen = _ChosenWeight(transposed=False)

    def __call__(self, x: Tensor, index: Tensor) -> Tensor:
        weight = self.linear.weight
        bias = self.linear.bias
        bias = None if bias is None else bias.detach()[index]
        if x.is_cuda:
            out = gather_linear(x.to(weight.dtype), weight.detach(), index)
            return out if bias is None else out.add_(bias)
        return self._chosen.linear(x, weight, index, bias)


class KeptColumns:
    """A linear layer that reads chosen inputs only; its weight is stored by columns."""

    def __init__(self, linear: nn.Linear) -> None:
        self.linear = linear
        self._chosen = _ChosenWeight(transposed=True)

    def __call__(self, x: Tensor, index: Tensor) -> Tensor:
        columns, bias = self.linear.weight.t(), self.linear.bias
        bias = None if bias is None else bias.detach()
        if x.is_cuda:
            out = gather_combine(x.to(columns.dtype), columns.detach(), index)
            return out if bias is None else out.add_(bias)
        return self._chosen.linear(x, columns, index, bias)
