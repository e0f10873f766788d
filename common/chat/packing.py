"""Linear layers with weights laid out once for skinny matrices: what decoding on a CPU needs.

With the layout kept, a step of 8 to 32 rows takes about half: by our own product on one thread,
where a compiler is found, else by oneDNN's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ritornello.common.kernels.packed_linear import can_pack, pack_weight, packed_linear
from ritornello.common.kernels.skinny_linear import obstacle, pack_panels, skinny_linear

_TYPICAL_ROWS = 16


class PackedWeights:
    """Keeps packed copies of a model's linear weights and lends them during a `with` block.

    The copies cost as much memory as the weights. A weight that was changed (in place or replaced)
    since it was packed is packed again on entry. Outside the block the model is untouched.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [module for module in model.modules() if type(module) is nn.Linear]
        self._packed: dict[int, tuple[tuple[int, int, bool], Tensor]] = {}

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within the block, fp32 CPU linear layers use their packed weights (no gradients)."""
        own = torch.get_num_threads() == 1 and obstacle() is None
        changed = []
        try:
            for layer in self._layers:
                if "forward" in layer.__dict__ or not can_pack(layer.weight):
                    continue
                layer.forward = self._forward(layer, own)
                changed.append(layer)
            yield
        finally:
            for layer in changed:
                del layer.forward

    def _forward(self, layer: nn.Linear, own: bool) -> Callable[..., Tensor]:
        weight = layer.weight.detach()
        bias = None if layer.bias is None else layer.bias.detach()
        version = (weight.data_ptr(), weight._version, own)
        known = self._packed.get(id(layer))
        if known is None or known[0] != version:
            packed = pack_panels(weight) if own else pack_weight(weight, _TYPICAL_ROWS)
            self._packed[id(layer)] = known = (version, packed)
        if own:
            return partial(skinny_linear, panels=known[1], bias=bias, outputs=len(weight))
        return partial(packed_linear, packed=known[1], bias=bias)
