"""From a transformers checkpoint to a quantised model: fold, rotate, round, install quantisers."""

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ritornello.methods.rrs.baselines import collect_absmax, smooth_quant
from ritornello.methods.rrs.calibration import round_weights
from ritornello.methods.rrs.config import RRSConfig
from ritornello.methods.rrs.experts import separate_experts
from ritornello.methods.rrs.families import (
    decoder_of,
    family_of,
    head_shape,
    layers_of,
    linear_of,
)
from ritornello.methods.rrs.kv_cache import KeyQuantizer, install_key_quantizers
from ritornello.methods.rrs.linear import ActivationQuantizer, QuantLinear, TokenContext
from ritornello.methods.rrs.rotation import (
    fuse_rms_norms,
    hadamard_block,
    online_rotations,
    rotate_inner_states,
    rotate_model,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_WEIGHT_FIELDS = (
    "w_bits",
    "rotate",
    "rotate_mode",
    "center_embeddings",
    "weight_method",
    "w_clip",
    "w_group_size",
    "seed",
)


@torch.no_grad()
def quantize_model(
    model: "PreTrainedModel",
    cfg: RRSConfig,
    calibration_ids: Int[Tensor, "windows tokens"] | None = None,
) -> "PreTrainedModel":
    """Quantises a causal language model in place and returns it.

    The projections of every decoder layer become `QuantLinear`s; embeddings, norms, softmax and
    lm_head keep full precision. `generate()` and padded batches work as before.

    Args:
        model: Llama, Mistral, Mixtral, Qwen2 or OPT, in evaluation mode.
        cfg: what to do.
        calibration_ids: token ids for GPTQ or SmoothQuant, one window a row.

    Raises:
        ValueError: unsupported architecture, widths without a Hadamard matrix, missing or malformed
            calibration text, or a model that was quantised before.
    """
    family_of(model)
    separate_experts(model)
    _check(model, cfg, calibration_ids)
    if cfg.smooth == "static":
        assert calibration_ids is not None
        smooth_quant(model, collect_absmax(model, calibration_ids), cfg.static_alpha)
    if cfg.rotate:
        fuse_rms_norms(model, center_embeddings=cfg.center_embeddings)
        rotate_model(model, cfg.seed, mode=cfg.rotate_mode)
        rotate_inner_states(model, mode=cfg.rotate_mode)
    install_projections(model, cfg)
    if cfg.w_bits < 16:
        round_weights(model, cfg, calibration_ids)
    return requantize_activations(model, cfg)


def install_projections(model: "PreTrainedModel", config: RRSConfig) -> None:
    """Swaps every projection for a `QuantLinear` at 16 bits that turns its input."""
    family = family_of(model)
    turns = online_rotations(model, mode=config.rotate_mode) if config.rotate else {}
    for layer in layers_of(model):
        for name, kind in family.projections.items():
            made = QuantLinear.from_linear(linear_of(layer, name), turns.get(kind))
            made.routed = bool(family.routers) and kind.startswith("mlp")
            layer.set_submodule(name, made)
    context = TokenContext()
    for layer in quant_linears(model):
        layer.context = context
    decoder = decoder_of(model)
    decoder.register_forward_pre_hook(_TokenWatch(context), with_kwargs=True)
    decoder.register_forward_hook(_TokenForget(context), always_call=True)


def requantize_activations(model: "PreTrainedModel", config: RRSConfig) -> "PreTrainedModel":
    """Changes how a quantised model rounds activations, keys and values; the weights stay.

    Raises:
        ValueError: the model is not quantised, or `config` wants other weights.
    """
    layers = quant_linears(model)
    if not layers:
        raise ValueError("model holds no QuantLinear: call quantize_model first")
    current = getattr(model.config, "rrs", None)
    if current is not None:
        _check_same_weights(RRSConfig(**current), config)
    family = family_of(model)
    stat = config.scale_stat if config.smooth == "runtime" else None
    plain = ActivationQuantizer(config.a_bits, config.a_clip_ratio)
    smoothed = plain._replace(stat=stat, group_size=config.group_size, decode=config.decode)
    for layer in layers_of(model):
        for name, kind in family.projections.items():
            linear = layer.get_submodule(name)
            assert isinstance(linear, QuantLinear)
            left_out = kind == "attention_input" and config.targets == "official"
            linear.quantizer = plain if left_out else smoothed
            linear.output_bits = config.v_bits if name == family.value else 16
            linear.set_execution(config.execution)
    _quantize_keys(model, config)
    model.config.rrs = {field: getattr(config, field) for field in config.__dataclass_fields__}
    return model


def quant_linears(model: nn.Module) -> list[QuantLinear]:
    """All quantised projections of a model."""
    return [module for module in model.modules() if isinstance(module, QuantLinear)]


def _quantize_keys(model: "PreTrainedModel", config: RRSConfig) -> None:
    attentions = [
        layer.get_submodule(family_of(model).attention_output.rpartition(".")[0])
        for layer in layers_of(model)
    ]
    quantizer = None
    if config.k_bits < 16:
        width = head_shape(model)[2]
        block = hadamard_block(width, config.rotate_mode, "head width") if config.rotate else 1
        quantizer = KeyQuantizer(config.k_bits, block, per_head=config.k_group == "head")
    install_key_quantizers(model, attentions, quantizer)


def _check(model: "PreTrainedModel", config: RRSConfig, calibration_ids: Tensor | None) -> None:
    family = family_of(model)
    if quant_linears(model):
        raise ValueError("model is quantised already: load it anew, or use requantize_activations")
    if config.rotate:
        online_rotations(model, mode=config.rotate_mode)
    if config.needs_calibration and calibration_ids is None:
        raise ValueError(
            f"calibration_ids are needed for weight_method={config.weight_method!r}, "
            f"smooth={config.smooth!r}; accepted: token ids (windows, tokens), or "
            "weight_method='rtn' with smooth='none' or 'runtime'"
        )
    if calibration_ids is not None and (
        calibration_ids.ndim != 2 or calibration_ids.is_floating_point()
    ):
        raise ValueError(
            "calibration_ids must be integers (windows, tokens), got "
            f"{calibration_ids.dtype} {tuple(calibration_ids.shape)}"
        )
    layer = layers_of(model)[0]
    widths = {name: linear_of(layer, name).in_features for name in family.projections}
    for name, width in widths.items():
        if config.w_group_size is not None and width % config.w_group_size:
            raise ValueError(
                f"w_group_size must divide the {width} inputs of {name}, got {config.w_group_size}"
            )
        if config.w_bits <= 4 and width % 2:
            raise ValueError(f"w_bits={config.w_bits} packs pairs: {name} has {width} inputs, odd")


def _check_same_weights(current: RRSConfig, config: RRSConfig) -> None:
    for name in _WEIGHT_FIELDS:
        if getattr(current, name) != getattr(config, name):
            raise ValueError(
                f"{name}={getattr(config, name)!r} wants other weights than the model has "
                f"({getattr(current, name)!r}): quantise the original model anew"
            )
    if "static" in (current.smooth, config.smooth) and current.smooth != config.smooth:
        raise ValueError(
            f"smooth={config.smooth!r} wants other weights than the model has "
            f"({current.smooth!r}): quantise the original model anew"
        )


def weights_key(config: RRSConfig) -> RRSConfig:
    """The config with everything reset that does not change the weights: equal means reusable."""
    kept = {name: getattr(config, name) for name in _WEIGHT_FIELDS}
    if config.smooth == "static":
        return replace(RRSConfig(), **kept, smooth="static", static_alpha=config.static_alpha)
    return replace(RRSConfig(), **kept)


class _TokenWatch:
    """Notes, before the decoder runs, which of its tokens count."""

    def __init__(self, context: TokenContext) -> None:
        self.context = context

    def __call__(self, decoder: nn.Module, args: tuple, given: dict) -> None:
        values = inspect.signature(decoder.forward).bind_partial(*args, **given).arguments
        values = {**values, **given}
        tokens = values.get("input_ids")
        if tokens is None:
            tokens = values["inputs_embeds"]
        assert isinstance(tokens, Tensor)
        batch, length = tokens.shape[:2]
        cache = values.get("cache", values.get("past_key_values"))
        mask = values.get("attention_mask")
        self.context.shape = (batch, length)
        self.context.keep = None
        # A mask of more dimensions says who attends to whom, not which tokens are padding.
        if isinstance(mask, Tensor) and mask.ndim == 2:
            self.context.keep = mask[:, -length:].bool()
        self.context.continuing = cache is not None and cache.get_seq_length() > 0
        self.context.prefills += not self.context.continuing


class _TokenForget:
    """Clears the notes when the decoder is done, or has failed."""

    def __init__(self, context: TokenContext) -> None:
        self.context = context

    def __call__(self, decoder: nn.Module, args: tuple, output: object) -> None:
        self.context.shape = self.context.keep = None
        self.context.continuing = False
