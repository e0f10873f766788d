"""Parameters that carry what the u-muP learning-rate rules need (table 2).

The tags are attributes of a plain `nn.Parameter`, not of a subclass, so that fused and foreach
optimisers accept it.
"""

from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

import torch
from torch import Tensor, nn

MupType = Literal["weight", "bias", "norm", "output"]

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    class TaggedParameter(nn.Parameter):
        """What `Parameter` returns to a type checker; at run time, a plain `nn.Parameter`."""

        mup_type: MupType
        mup_scaling_depth: int | None


def Parameter(
    data: Tensor,
    mup_type: MupType,
    mup_scaling_depth: int | None = None,
    *,
    requires_grad: bool = True,
) -> "TaggedParameter":
    """An `nn.Parameter` with `mup_type` and `mup_scaling_depth`.

    The tags survive deepcopy and pickle; modules of this package keep them through `to`,
    `load_state_dict(assign=True)` and the assignment of a new parameter.

    Args:
        data: initial value; for weights drawn from N(0, 1).
        mup_type: "weight" (hidden and embedding), "output" (readout), "bias" or "norm".
        mup_scaling_depth: number of layers of the residual stack, None outside of one.
        requires_grad: as for `nn.Parameter`.

    Raises:
        ValueError: for an unknown `mup_type`.
    """
    if mup_type not in get_args(MupType):
        raise ValueError(f"mup_type must be one of {list(get_args(MupType))}, got {mup_type!r}")
    parameter = nn.Parameter(data.detach(), requires_grad=requires_grad)
    return _tag(parameter, mup_type, mup_scaling_depth)


def _tag(parameter: nn.Parameter, mup_type: MupType, depth: int | None) -> "TaggedParameter":
    tagged = cast("TaggedParameter", parameter)
    tagged.mup_type = mup_type
    tagged.mup_scaling_depth = depth
    # deepcopy and pickle look these up on the object, and the class's own drop the attributes.
    tagged.__deepcopy__ = MethodType(_deepcopy, tagged)
    tagged.__reduce_ex__ = MethodType(_reduce, tagged)
    return tagged


def is_tagged(parameter: Tensor) -> "TypeIs[TaggedParameter]":
    """Whether `parameter` carries the tags of `Parameter`."""
    return hasattr(parameter, "mup_type")


def _rebuild(data: Tensor, mup_type: MupType, depth: int | None, requires_grad: bool):
    return Parameter(data, mup_type, mup_scaling_depth=depth, requires_grad=requires_grad)


def _tags(parameter: "TaggedParameter") -> tuple[MupType, int | None, bool]:
    return parameter.mup_type, parameter.mup_scaling_depth, parameter.requires_grad


def _deepcopy(parameter: "TaggedParameter", memo: dict) -> nn.Parameter:
    if id(parameter) not in memo:
        data = parameter.data.clone(memory_format=torch.preserve_format)
        memo[id(parameter)] = _rebuild(data, *_tags(parameter))
    return memo[id(parameter)]


def _reduce(parameter: "TaggedParameter", protocol: int) -> tuple:
    return _rebuild, (parameter.data, *_tags(parameter))


class MupModule(nn.Module):
    """A module whose parameters keep their tags when their tensors are exchanged."""

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        previous = self._parameters.get(name)
        if previous is not None and param is not None and is_tagged(previous):
            if not is_tagged(param):
                _tag(param, *_tags(previous)[:2])
            elif param.mup_type != previous.mup_type:
                raise ValueError(
                    f"{name} of {type(self).__name__} has mup_type {previous.mup_type!r} and "
                    f"cannot be tied to a parameter of mup_type {param.mup_type!r}: the two need "
                    "different learning rates; leave embedding and readout untied "
                    "(tie_word_embeddings=False)"
                )
        super().register_parameter(name, param)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = {name: p for name, p in self._parameters.items() if p is not None}
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._parameters[name]
            if is_tagged(old) and new is not None and not is_tagged(new):
                _tag(new, *_tags(old)[:2])
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Pickles between processes take parameters apart by torch's own rule, which drops the tags.
        named = self._parameters.items()
        own = {name: _tags(p)[:2] for name, p in named if p is not None and is_tagged(p)}
        return self.__dict__ | {"_parameter_tags": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = state.pop("_parameter_tags", {})
        super().__setstate__(state)
        for name, tags in own.items():
            parameter = self._parameters[name]
            if parameter is not None and not is_tagged(parameter):
                _tag(parameter, *tags)
