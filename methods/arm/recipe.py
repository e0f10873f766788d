"""Learning-rate schedule and layer-wise decay of the paper's training recipes."""

import math
import re
from typing import Any

from torch import nn

from ritornello.methods.arm.pretraining import stacked_vectors


def learning_rate(
    epoch: float, *, peak: float, epochs: int, warmup_epochs: int, minimum: float = 0.0
) -> float:
    """Linear warm-up, then half a cosine down to `minimum`; `epoch` may be fractional."""
    if epoch < warmup_epochs:
        return peak * epoch / warmup_epochs
    progress = (epoch - warmup_epochs) / (epochs - warmup_epochs)
    return minimum + (peak - minimum) * 0.5 * (1 + math.cos(math.pi * progress))


def layer_id(name: str, depth: int) -> int:
    """0 for embedding, class token and positions, i + 1 for block i, depth + 1 for the rest."""
    if name in ("cls_token", "pos_embed") or name.startswith("patch_embed"):
        return 0
    match = re.match(r"blocks\.(\d+)\.", name)
    return int(match[1]) + 1 if match else depth + 1


def layer_decay_groups(
    model: nn.Module,
    *,
    lr: float,
    layer_decay: float = 1.0,
    weight_decay: float = 0.05,
    decay_ssm: bool = True,
) -> list[dict]:
    """Optimiser groups with lr * layer_decay^(depth + 1 - layer) and no decay of vectors.

    Args:
        model: an ARM model (its `blocks` and `no_weight_decay` are read).
        lr: learning rate of the last layer.
        layer_decay: factor per layer below it; 0.65 for base, 0.75 for large.
        weight_decay: of matrices.
        decay_ssm: whether A_log decays. The official recipe decays it, against the mark that the
            parameter carries.

    Raises:
        ValueError: `layer_decay` outside (0, 1].
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(f"layer_decay must be in (0, 1], got {layer_decay}")
    arm: Any = model
    depth, spared = len(arm.blocks), arm.no_weight_decay() | stacked_vectors(model)
    groups: dict[tuple[int, bool], dict] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decays = parameter.ndim > 1 and name not in spared
        decays = decays and (decay_ssm or not name.endswith("A_log"))
        layer = layer_id(name, depth)
        scale = layer_decay ** (depth + 1 - layer)
        group = groups.setdefault((layer, decays), {
            "params": [], "names": [], "lr": lr * scale, "lr_scale": scale,
            "weight_decay": weight_decay if decays else 0.0,
        })  # fmt: skip
        group["params"].append(parameter)
        group["names"].append(name)
    return list(groups.values())
