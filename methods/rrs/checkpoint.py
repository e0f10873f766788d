"""Quantised models on disk: safetensors with packed integers, and the config beside them."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ritornello.common.errors import UserError
from ritornello.methods.rrs.config import RRSConfig
from ritornello.methods.rrs.experts import separate_experts
from ritornello.methods.rrs.families import family_of, layers_of
from ritornello.methods.rrs.linear import QuantLinear
from ritornello.methods.rrs.quantize import (
    install_projections,
    quant_linears,
    requantize_activations,
)
from ritornello.methods.rrs.rotation import convert_norms

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_WEIGHTS = "model.safetensors"


def save_pretrained(model: "PreTrainedModel", folder: str | Path) -> None:
    """Writes `model.safetensors` and `config.json`, which holds the RRSConfig under "rrs".

    Rotations are folded into what is written; those at run time are made anew on loading.

    Raises:
        ValueError: the model is not quantised.
    """
    from safetensors.torch import save_file

    if not quant_linears(model):
        raise ValueError("model holds no QuantLinear: call quantize_model first")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.lm_head.weight is model.get_input_embeddings().weight:
        del tensors["lm_head.weight"]
    unfinished = folder / f"{_WEIGHTS}.part"
    save_file(tensors, unfinished)
    unfinished.replace(folder / _WEIGHTS)
    model.config.save_pretrained(folder)


def from_pretrained(folder: str | Path, *, device: torch.device | str = "cpu") -> "PreTrainedModel":
    """Loads what `save_pretrained` wrote, in evaluation mode.

    Args:
        folder: where it lies.
        device: where the model goes.

    Raises:
        UserError: (a ValueError) a file is missing, truncated or not of a quantised model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(folder)
    for name in ("config.json", _WEIGHTS):
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}: save_pretrained writes it")
    loaded = AutoConfig.from_pretrained(folder, local_files_only=True)
    if not hasattr(loaded, "rrs"):
        raise UserError(f"{folder / 'config.json'} holds no RRSConfig: not a quantised model")
    config = RRSConfig(**loaded.rrs)
    try:
        tensors = load_file(folder / _WEIGHTS)
    except SafetensorError as error:
        raise UserError(f"{folder / _WEIGHTS} is damaged or truncated: {error}") from error
    embedding = next(
        (t for name, t in tensors.items() if name.endswith("embed_tokens.weight")), None
    )
    if embedding is None:
        raise UserError(f"{folder / _WEIGHTS} holds no embeddings: not a causal language model")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            loaded, dtype=embedding.dtype, attn_implementation="sdpa"
        )
        separate_experts(model)
        if config.rotate:
            convert_norms(model)
        install_projections(model, config)
        _expect_integers(model, config)
    tied = "lm_head.weight" not in tensors
    try:
        model.load_state_dict(
            tensors | ({"lm_head.weight": embedding} if tied else {}), assign=True
        )
    except RuntimeError as error:
        raise UserError(f"{folder / _WEIGHTS} does not fit its config.json: {error}") from error
    if tied:
        model.lm_head.weight = model.get_input_embeddings().weight
    _rebuild_position_embeddings(model)
    requantize_activations(model, config)
    model.to(device)  # type: ignore[reportArgumentType]  # the stub's decorator hides `self`
    return model.eval()


def _expect_integers(model: "PreTrainedModel", config: RRSConfig) -> None:
    """Gives every projection the buffers that its integers will be loaded into."""
    if config.w_bits == 16:
        return
    for layer in layers_of(model):
        for name in family_of(model).projections:
            old = layer.get_submodule(name)
            assert isinstance(old, QuantLinear)
            new = QuantLinear(
                old.in_features,
                old.out_features,
                weight_bits=config.w_bits,
                bias=old.bias is not None,
                weight_group_size=config.w_group_size,
                dtype=old.dtype,
            )
            new.take_place_of(old)
            layer.set_submodule(name, new)


def _rebuild_position_embeddings(model: "PreTrainedModel") -> None:
    """Rotary tables are computed, not stored: make those that are still without values."""
    for name, module in list(model.named_modules()):
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            model.set_submodule(name, type(module)(config=model.config))
