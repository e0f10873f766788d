"""Published checkpoints: the official names and layout, and the step from pretraining to tuning."""

import argparse
import re
from pathlib import Path

import torch
from torch import Tensor, nn

from ritornello.methods.arm.classifier import ARMForImageClassification
from ritornello.methods.arm.patches import interpolate_positions, sincos_positions

RENAMED = [
    (r"^layers\.", "blocks."),
    (r"^norm_f\.", "norm."),
    (r"^dec_block\.(\d+)\.attn2\.", r"decoder.\1."),
    (r"^dec_block\.(\d+)\.norm2_1\.", r"decoder.\1.query_norm."),
    (r"^dec_block\.(\d+)\.norm2_2\.", r"decoder.\1.memory_norm."),
    (r"^dec_block\.(\d+)\.norm2\.", r"decoder.\1.mlp_norm."),
    (r"^dec_block\.(\d+)\.mlp\.", r"decoder.\1."),
    (r"^enc2dec\.", "encoder_to_decoder."),
    (r"^ar_token$", "query_token"),
    (r"^ar_norm\.", "decoder_norm."),
    (r"^ar_pred\.", "pixel_head."),
]
STACKED = {
    "conv1d.weight": "conv_weight",
    "conv1d.bias": "conv_bias",
    "x_proj.weight": "x_proj",
    "dt_proj.weight": "dt_weight",
    "dt_proj.bias": "dt_bias",
    "A_log": "A_log",
    "D": "D",
}
SUFFIXES = ("", "_b", "_c", "_c_b")  # row, row reversed, column, column reversed
BUFFERS = ("mask", "dec_pos_embed")


def our_name(official: str) -> tuple[str, int | None]:
    """Our name of an official parameter, and its index among the stacked directions (or None)."""
    match = re.fullmatch(r"(?P<path>.*mixer\.|)(?P<own>[^.]+(?:\.\w+)?)", official)
    own = match["own"] if match else ""
    for direction, suffix in reversed(list(enumerate(SUFFIXES))):
        for theirs, ours in STACKED.items():
            stem, _, kind = theirs.partition(".")
            name = f"A{suffix}_log" if stem == "A_log" else stem + suffix + (kind and f".{kind}")
            if match and own == name:
                return _rename(match["path"]) + ours, direction
    if match := re.fullmatch(r"norm_(\d)\.(\w+)", official):
        return f"tap_norms.{int(match[1]) - 1}.{match[2]}", None
    return _rename(official), None


def _rename(name: str) -> str:
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def from_official(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """An official state dict (mixer, pretraining or fine-tuning model) under our names.

    The directions' parameters are stacked; tables that our models compute are left out. A dict that
    has our names already comes back unchanged.
    """
    if any(name.endswith("conv_weight") for name in state_dict):
        return dict(state_dict)
    ours: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, Tensor]] = {}
    for official, value in state_dict.items():
        name, direction = our_name(official)
        if direction is not None:
            value = value.squeeze(1) if name.endswith("conv_weight") else value
            stacks.setdefault(name, {})[direction] = value
        elif official not in BUFFERS:
            ours[name] = value
    for name, by_direction in stacks.items():
        ours[name] = torch.stack([by_direction[i] for i in sorted(by_direction)])
    return ours


def convert_pretrained(
    state_dict: dict[str, Tensor], model: ARMForImageClassification
) -> dict[str, Tensor]:
    """Encoder weights for a classifier, to be loaded with `strict=False` (sec. 3.4).

    A single scan direction is copied into all of the model's; positions are interpolated to the
    model's grid with a zero row for the class token. Decoder and head are left out: the class
    token, the last norm and the head keep the model's own values.

    Args:
        state_dict: of a pretraining model, official names or ours.
        model: the classifier to be fine-tuned.

    Raises:
        ValueError: the weights are not those of an encoder of the model's shape.
    """
    source, expected = from_official(state_dict), model.state_dict()
    grid, dim = model.patch_embed.grid, model.num_features
    converted = {}
    for name, value in source.items():
        if name.startswith(("blocks.", "patch_embed.")) and name in expected:
            target = expected[name].shape
            if ".mixer." in name and value.shape[1:] == target[1:] and len(value) != target[0]:
                value = value[:1].expand(target).clone()
            converted[name] = value
    positions = source.get("pos_embed", sincos_positions(grid, dim)[None])
    if positions.shape[1] != grid[0] * grid[1] + 1:
        positions = interpolate_positions(positions, grid, model.cls_index)
    converted["pos_embed"] = positions
    missing = [n for n in expected if n.startswith("blocks.") and n not in converted]
    wrong = [n for n, value in converted.items() if value.shape != expected[n].shape]
    if missing or wrong:
        raise ValueError(
            f"state_dict does not fit the model: {len(missing)} missing (first {missing[:1]}), "
            f"{len(wrong)} of another shape (first {wrong[:1]})"
        )
    return converted


def load_official_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Weights of a published file (`model` entry, EMA if there is one), under our names.

    Raises:
        ValueError: no such file, or it holds no weights.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"path must be a checkpoint file (from the hub repository), got {path}")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return from_official(load_file(path))
    # Published files carry the arguments of their training beside the weights.
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("model_ema", "model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not any(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(f"path={path} holds no state dict")
    weights = {k.removeprefix("module."): v for k, v in content.items() if isinstance(v, Tensor)}
    return from_official(weights)


def initialize_from(
    model: ARMForImageClassification, state_dict: dict[str, Tensor], *, head_std: float = 2e-5
) -> nn.Module:
    """Loads pretrained weights into a classifier and draws its head anew.

    Args:
        head_std: standard deviation of the head's weights; the official fine-tuning takes 2e-5, a
            model trained from scratch has 0.02.
    """
    model.load_state_dict(convert_pretrained(state_dict, model), strict=False)
    if model.num_classes:
        assert isinstance(model.head, nn.Linear)
        nn.init.trunc_normal_(model.head.weight, std=head_std)
    return model
