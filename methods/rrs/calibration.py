"""Rounds the weights of a whole model, layer after layer, to nearest or by GPTQ."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ritornello.methods.rrs.config import RRSConfig
from ritornello.methods.rrs.families import decoder_of, family_of, layers_of
from ritornello.methods.rrs.gptq import Hessian, gptq_quantize
from ritornello.methods.rrs.linear import QuantLinear
from ritornello.methods.rrs.offload import working_layers
from ritornello.methods.rrs.quantizers import Quantized, quantize_weight

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Call = tuple[tuple, dict]


class _InputReachedError(Exception):
    """Ends a forward as soon as the input that was waited for is there."""


@torch.no_grad()
def round_weights(
    model: "PreTrainedModel",
    config: RRSConfig,
    calibration_ids: Int[Tensor, "windows tokens"] | None,
) -> None:
    """Gives every `QuantLinear` of the model integer weights, in place."""
    if config.weight_method == "rtn":
        for layer in working_layers(model):
            for name in family_of(model).projections:
                linear = _projection(layer, name)
                weight = quantize_weight(
                    linear.weight,
                    config.w_bits,
                    clip_search=config.w_clip,
                    group_size=config.w_group_size,
                )
                layer.set_submodule(name, linear.with_integers(weight, config.w_bits))
        return
    assert calibration_ids is not None
    calls = _first_layer_calls(model, calibration_ids)
    for layer in working_layers(model):
        for names in family_of(model).groups:
            _round_group(layer, names, calls, config)
        # What the next layer sees comes from the rounded weights.
        calls = [((_first(layer(*args, **given)), *args[1:]), given) for args, given in calls]


def _round_group(
    layer: nn.Module, names: tuple[str, ...], calls: list[Call], config: RRSConfig
) -> None:
    """GPTQ on the projections that share an input: their rows go through as one matrix."""
    linears = [_projection(layer, name) for name in names]
    weight = torch.cat([linear.weight for linear in linears])
    hessian = Hessian(weight.shape[1], weight.device)

    def add(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(module, QuantLinear)
        hessian.add(args[0] if module.rotation is None else module.rotation(args[0]))

    for call in calls:
        _run_until(layer, call, linears[0], add)
    options = {"clip_search": config.w_clip, "group_size": config.w_group_size}
    if hessian.sequences:
        joint = gptq_quantize(weight, hessian.matrix, config.w_bits, **options)
    else:  # an expert that no calibration token was sent to
        joint = quantize_weight(weight, config.w_bits, **options)
    sizes = [linear.out_features for linear in linears]
    parts = zip(*(t.split(sizes) for t in joint), strict=True)
    for name, linear, part in zip(names, linears, parts, strict=True):
        layer.set_submodule(name, linear.with_integers(Quantized(*part), config.w_bits))


def _run_until(
    layer: nn.Module, call: Call, target: nn.Module, act: Callable[[nn.Module, tuple], None]
) -> None:
    """Runs the layer up to the input of `target`."""

    def stop(module: nn.Module, args: tuple) -> None:
        act(module, args)
        raise _InputReachedError

    hook = target.register_forward_pre_hook(stop)
    args, given = call
    try:
        layer(*args, **given)
    except _InputReachedError:
        pass
    finally:
        hook.remove()


def _first_layer_calls(model: "PreTrainedModel", calibration_ids: Tensor) -> list[Call]:
    """The arguments of the first layer, one call for each calibration window."""
    calls: list[Call] = []

    def keep(module: nn.Module, args: tuple, given: dict) -> None:
        calls.append((args, given))
        raise _InputReachedError

    hook = layers_of(model)[0].register_forward_pre_hook(keep, with_kwargs=True)
    try:
        for window in calibration_ids:
            try:
                decoder_of(model)(window[None].to(model.device), use_cache=False)
            except _InputReachedError:
                continue
    finally:
        hook.remove()
    return calls


def _projection(layer: nn.Module, name: str) -> QuantLinear:
    linear = layer.get_submodule(name)
    assert isinstance(linear, QuantLinear)
    return linear


def _first(output: Tensor | tuple) -> Tensor:
    return output[0] if isinstance(output, tuple) else output
