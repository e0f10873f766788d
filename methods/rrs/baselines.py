"""SmoothQuant: what the paper compares with that is not a switch of the same pipeline."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ritornello.methods.rrs.experts import separate_experts
from ritornello.methods.rrs.families import family_of, head_shape, layers_of, linear_of
from ritornello.methods.rrs.offload import working_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SMALLEST = 1e-5


@torch.no_grad()
def collect_absmax(
    model: "PreTrainedModel", calibration_ids: Int[Tensor, "windows tokens"]
) -> dict[str, Float[Tensor, " channels"]]:
    """Largest |x| of each input channel of every projection over the calibration tokens.

    Keys are module names such as "model.layers.0.mlp.up_proj".
    """
    separate_experts(model)
    absmax: dict[str, Tensor] = {}
    with _watched_inputs(model, absmax):
        for window in calibration_ids:
            model(window[None].to(model.device), use_cache=False)
    return absmax


@contextmanager
def _watched_inputs(model: "PreTrainedModel", absmax: dict[str, Tensor]) -> Iterator[None]:
    names = {id(module): name for name, module in model.named_modules()}

    def watch(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        found = args[0].detach().abs().flatten(0, -2).amax(0).float()
        name = names[id(module)]
        absmax[name] = torch.maximum(absmax[name], found) if name in absmax else found

    hooks = [
        layer.get_submodule(name).register_forward_pre_hook(watch)
        for layer in layers_of(model)
        for name in family_of(model).projections
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def static_scale(
    activation_absmax: Float[Tensor, " channels"],
    weights: list[Float[Tensor, "out channels"]],
    alpha: float = 0.5,
) -> Float[Tensor, " channels"]:
    """s_c = amax|X_c|^alpha / amax|W_c|^(1-alpha) over all layers that share the input."""
    weight_absmax = torch.stack([w.detach().abs().amax(0).float() for w in weights]).amax(0)
    up = activation_absmax.float().clamp(min=_SMALLEST) ** alpha
    down = weight_absmax.clamp(min=_SMALLEST) ** (1 - alpha)
    return (up / down).clamp(min=_SMALLEST)


@torch.no_grad()
def smooth_quant(
    model: "PreTrainedModel",
    act_absmax: dict[str, Float[Tensor, " channels"]],
    alpha: float = 0.5,
    *,
    through_linears: bool = False,
) -> "PreTrainedModel":
    """Moves the scale of activations into weights, in place; the function stays the same.

    Norm gains are divided by s, the columns of the projections that follow multiplied by it.

    Args:
        model: a supported causal language model whose norms have gains.
        act_absmax: from `collect_absmax`.
        alpha: share of the difficulty that goes to the weights.
        through_linears: also smooth the inputs of o (the rows of v take up 1/s, shared by the query
            heads of a key-value head) and of down (the rows of up, or of fc1 before a ReLU).

    Raises:
        ValueError: unsupported architecture, alpha outside [0, 1], or an activation that a scale
            cannot pass.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be in [0, 1], got {alpha}")
    family = family_of(model)
    projections = family.projections
    separate_experts(model)
    names = {id(module): name for name, module in model.named_modules()}
    for layer in working_layers(model):
        for norm_name, reader_names in family.norms.items():
            # Experts see some of the tokens each; routers are not rounded and set no scale.
            linears = [linear_of(layer, name) for name in reader_names if name in projections]
            seen = [act_absmax[name] for r in linears if (name := names[id(r)]) in act_absmax]
            scale = static_scale(torch.stack(seen).amax(0), [r.weight for r in linears], alpha)
            _divide(layer.get_submodule(norm_name), scale)
            for name in reader_names:
                weight = layer.get_parameter(f"{name}.weight")
                weight.mul_(scale.to(weight.dtype))
        if through_linears:
            output = linear_of(layer, family.attention_output)
            scale = static_scale(act_absmax[names[id(output)]], [output.weight], alpha)
            shared = _shared_by_query_heads(scale, *head_shape(model))
            _divide(layer.get_submodule(family.value), shared.flatten())
            output.weight.mul_(_for_each_query_head(shared, *head_shape(model)))
            _check_passes_scale(model)
            for inputs, mlp_output in family.mlps:
                down = linear_of(layer, mlp_output)
                if (absmax := act_absmax.get(names[id(down)])) is not None:
                    scale = static_scale(absmax, [down.weight], alpha)
                    _divide(layer.get_submodule(inputs[0]), scale)
                    down.weight.mul_(scale.to(down.weight.dtype))
    return model


def _divide(module: nn.Module, scale: Tensor) -> None:
    """Divides what a norm or a linear layer puts out by `scale`."""
    parameters = dict(module.named_parameters(recurse=False))
    weight = parameters["weight"]
    weight.div_(scale.to(weight.dtype) if weight.ndim == 1 else scale.to(weight.dtype)[:, None])
    if "bias" in parameters:
        parameters["bias"].div_(scale.to(weight.dtype))


def _shared_by_query_heads(scale: Tensor, heads: int, kv_heads: int, width: int) -> Tensor:
    return scale.view(kv_heads, heads // kv_heads, width).amax(1)


def _for_each_query_head(shared: Tensor, heads: int, kv_heads: int, width: int) -> Tensor:
    return shared[:, None].expand(kv_heads, heads // kv_heads, width).reshape(-1)


def _check_passes_scale(model: "PreTrainedModel") -> None:
    activation = getattr(model.config, "activation_function", "relu")
    if activation != "relu":
        raise ValueError(
            f"through_linears needs a gated MLP or a ReLU, model has {activation!r}: "
            "a scale does not pass through it"
        )
