"""Operators without a gradient, registered at half of `torch.library.custom_op`'s overhead."""

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY = torch.library.Library("ritornello", "FRAGMENT")


def constant_operator(name: str) -> Callable[[Callable[..., Any]], torch._ops.OpOverload]:
    """Registers a function of tensors as `ritornello::<name>` and returns the operator.

    Autograd takes its results as constants, whatever the inputs: they require no gradient. Like
    any operator it is one node to `torch.compile`, once `torch.library.register_fake` knows its
    shapes. `custom_op` costs several microseconds more a call, which counts for integers and scales
    that are made anew from small inputs at every layer.

    Args:
        name: of the operator; the function's annotations give its signature, and none of its
            arguments may be changed or returned.
    """

    def register(function: Callable[..., Any]) -> torch._ops.OpOverload:
        _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=()))
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
        return getattr(torch.ops.ritornello, name).default

    return register
