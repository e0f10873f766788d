"""Learning rates and weight decay of u-muP (table 2, sec. 4.4), and optimisers that apply them."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ritornello.methods.umup.parameter import is_tagged

if TYPE_CHECKING:
    from ritornello.methods.umup.parameter import TaggedParameter

Optimizer = Literal["adam", "adamw", "sgd"]
Parameters = nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]


def lr_scale(
    parameter: "TaggedParameter",
    *,
    optimizer: Optimizer = "adamw",
    readout_constraint: Literal["to_output_scale"] | None = None,
) -> float:
    """Multiplier of the learning rate of a tagged parameter.

    Adam, and SGD beside an unconstrained readout: fan_in^-1/2 for weights, 1 for the rest. SGD
    with `readout_constraint="to_output_scale"`: fan_in^1/2 for weights, numel for biases and norms.
    All times depth^-1/2 inside a residual stack. fan_in is the product of all axes but the first,
    so that an embedding (vocabulary, dim) has dim; of a single axis, its length.
    """
    if readout_constraint not in (None, "to_output_scale"):
        raise ValueError(
            f"readout_constraint must be None or 'to_output_scale', got {readout_constraint!r}"
        )
    if optimizer not in ("adam", "adamw", "sgd"):
        raise ValueError(f"optimizer must be 'adam', 'adamw' or 'sgd', got {optimizer!r}")
    constrained = optimizer == "sgd" and readout_constraint is not None
    depth = parameter.mup_scaling_depth
    scale = 1.0 if depth is None else depth**-0.5
    match parameter.mup_type:
        case "weight":
            fan_in = (parameter if parameter.dim() < 2 else parameter[0]).numel()
            return scale * fan_in ** (0.5 if constrained else -0.5)
        case "bias" | "norm":
            return scale * (parameter.numel() if constrained else 1)
    return scale


def _named_groups(params: Parameters) -> Iterator[tuple[dict[str, Any], list[tuple[str, Tensor]]]]:
    """Pairs of a group's own options and its named parameters."""
    if isinstance(params, nn.Module):
        yield {}, list(params.named_parameters())
        return
    entries: list[Any] = list(params)
    if entries and isinstance(entries[0], dict):
        for entry in entries:
            options = {key: value for key, value in entry.items() if key != "params"}
            members = entry["params"]
            for _, named in _named_groups([members] if isinstance(members, Tensor) else members):
                yield options, named
        return
    yield {}, [e if isinstance(e, tuple) else (f"#{i}", e) for i, e in enumerate(entries)]


def param_groups(
    params: Parameters,
    lr: float | Tensor,
    weight_decay: float = 0.0,
    optimizer: Optimizer = "adamw",
    readout_constraint: Literal["to_output_scale"] | None = None,
    independent_weight_decay: bool = True,
    allow_unscaled: bool = False,
) -> list[dict[str, Any]]:
    """Optimiser groups with the u-muP learning rates, one for each multiplier.

    Args:
        params: a module, parameters, (name, parameter) pairs, or optimiser groups, whose own "lr"
            and "weight_decay" go before the arguments.
        lr: the global learning rate, O(1) for u-muP. A tensor gives each group a tensor of its own.
        weight_decay: with `independent_weight_decay` the fraction lost in a step at the peak of
            the schedule, whatever the learning rate: the group's value is weight_decay / its lr.
        optimizer: whose rule to use.
        readout_constraint: of the readout's gradients, which matters to SGD.
        independent_weight_decay: see `weight_decay`.
        allow_unscaled: give untagged parameters multiplier 1 instead of raising.

    Raises:
        ValueError: for an untagged parameter (named, with its shape) or a negative `lr`.
    """
    if not float(lr) >= 0:
        raise ValueError(f"lr must be at least 0, got {float(lr)}")
    groups = []
    for options, named in _named_groups(params):
        group_lr, decay = options.get("lr", lr), options.get("weight_decay", weight_decay)
        by_scale: dict[float, list[Tensor]] = {}
        for name, parameter in named:
            if is_tagged(parameter):
                scale = lr_scale(
                    parameter, optimizer=optimizer, readout_constraint=readout_constraint
                )
            elif allow_unscaled:
                scale = 1.0
            else:
                raise ValueError(
                    f"parameter {name} of shape {tuple(parameter.shape)} has no mup_type: make it "
                    "with umup.Parameter, or pass allow_unscaled=True for a multiplier of 1"
                )
            by_scale.setdefault(scale, []).append(parameter)
        for scale, members in by_scale.items():
            scaled = group_lr * scale
            if independent_weight_decay:  # a frozen group (lr 0) decays by nothing
                group_decay = decay / float(scaled) if float(scaled) > 0 else 0.0
            else:
                group_decay = decay
            own = {"params": members, "lr": scaled, "weight_decay": group_decay}
            groups.append(options | own)
    return groups


def _build(kind: Optimizer, optimizer: type, arguments: tuple, options: dict[str, Any]) -> Any:
    """The torch optimiser on `param_groups`, which takes its own among the options."""
    ours = ("readout_constraint", "independent_weight_decay", "allow_unscaled")
    grouping = {key: options.pop(key) for key in ours if key in options}
    params, lr, weight_decay = arguments
    groups = param_groups(params, lr, weight_decay, optimizer=kind, **grouping)
    return optimizer(groups, lr=lr, **options)


def AdamW(
    params: Parameters, lr: float | Tensor, *, weight_decay: float = 0.0, **options: Any
) -> torch.optim.AdamW:
    """`torch.optim.AdamW` on `param_groups`, whose options it takes beside torch's own."""
    return _build("adamw", torch.optim.AdamW, (params, lr, weight_decay), options)


def Adam(
    params: Parameters, lr: float | Tensor, *, weight_decay: float = 0.0, **options: Any
) -> torch.optim.Adam:
    """`torch.optim.Adam` on `param_groups`, whose options it takes beside torch's own."""
    return _build("adam", torch.optim.Adam, (params, lr, weight_decay), options)


def SGD(
    params: Parameters, lr: float | Tensor, *, weight_decay: float = 0.0, **options: Any
) -> torch.optim.SGD:
    """`torch.optim.SGD` on `param_groups`, whose options it takes beside torch's own."""
    return _build("sgd", torch.optim.SGD, (params, lr, weight_decay), options)


def describe_groups(model: nn.Module, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """One row for each parameter: name, shape, type, depth, effective Adam rate, decay per step."""
    rows = []
    for name, parameter in model.named_parameters():
        (group,) = param_groups([(name, parameter)], lr, weight_decay)
        assert is_tagged(parameter)  # param_groups refuses the others
        rows.append(
            {
                "name": name,
                "shape": tuple(parameter.shape),
                "mup_type": parameter.mup_type,
                "depth": parameter.mup_scaling_depth,
                "lr": group["lr"],
                "decay_per_step": group["lr"] * group["weight_decay"],
            }
        )
    return rows
