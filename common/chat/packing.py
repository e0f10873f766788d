"""Linear layers with weights laid out once for skinny matrices: what decoding on a CPU needs.

With the layout kept, a step of 8 to 32 rows takes about half.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from ritornello.common.kernels.packed_linear import can_pack, pack_weight, packed_linear

_TYPICAL_ROWS = 16


class PackedWeights:
    """Keeps packed copies of a model's linear weights and lends them during a `with` block.

    The copies cost as much memory as the weights. A weight that was changed (in place or replaced)
    since it was packed is packed again on entry. Outside the block the model is untouched.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [module for module in model.modules() if type(module) is nn.Linear]
        self._packed: dict[int, tuple[tuple[int, int], Tensor]] = {}

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within the block, fp32 CPU linear layers use their packed weights (no gradients)."""
        changed = []
        try:
            for layer in self._layers:
                weight = layer.weight
                if "forward" in layer.__dict__ or not can_pack(weight):
                    continue
                layer.forward = _PackedForward(self._packed_weight(layer), layer.bias)
                changed.append(layer)
            yield
        finally:
            for layer in changed:
                del layer.forward

    def _packed_weight(self, layer: nn.Linear) -> Tensor:
        weight = layer.weight.detach()
        version = (weight.data_ptr(), weight._version)
        known = self._packed.get(id(layer))
        if known is None or known[0] != version:
            packed = pack_weight(weight, _TYPICAL_ROWS)
            self._packed[id(layer)] = known = (version, packed)
        return known[1]


class _PackedForward:
    """x W^T + b with a packed W."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = None if bias is None else bias.detach()

    def __call__(self, input: Tensor) -> Tensor:
        return packed_linear(input, self._weight, self._bias)
