"""Explainers: scores of every element for a class, at the resolution of the inputs.

An explainer is a function (model, inputs, targets) → scores (batch, *grid).
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ritornello.common.optional import require
from ritornello.methods.f_fidelity.curves import predict

Explainer: TypeAlias = Callable[[nn.Module, Tensor, Tensor], Tensor]


def input_gradient(
    model: nn.Module, inputs: Float[Tensor, "batch *shape"], targets: Int[Tensor, " batch"]
) -> Float[Tensor, "batch *shape"]:
    """∂ logit of the target / ∂ x."""
    x = inputs.detach().clone().requires_grad_()
    with torch.enable_grad():
        logits = predict(model, x).gather(1, targets[:, None])
        return torch.autograd.grad(logits.sum(), x)[0]


def saliency(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """|∂ logit / ∂ x|, summed over the channels of images."""
    return _over_channels(input_gradient(model, inputs, targets).abs())


def integrated_gradients(
    model: nn.Module, inputs: Tensor, targets: Tensor, *, steps: int = 20
) -> Tensor:
    """Integrated gradients from zero by the midpoint rule, summed over the channels of images."""
    return _over_channels(_path_integral(model, inputs, targets, steps))


def smoothgrad_sq(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    samples: int = 10,
    steps: int = 20,
    noise: float = 1.0,
    seed: int = 0,
) -> Tensor:
    """SG-SQ: mean square of integrated gradients over noisy copies, summed over channels.

    Args:
        samples: noisy copies.
        steps: of the path integral.
        noise: standard deviation of what is added to the inputs.
        seed: of the noise.
    """
    generator = torch.Generator(device=inputs.device).manual_seed(seed)
    total = torch.zeros_like(inputs)
    for _ in range(samples):
        field = torch.randn(
            inputs.shape, generator=generator, dtype=inputs.dtype, device=inputs.device
        )
        total += _path_integral(model, inputs + noise * field, targets, steps) ** 2
    return _over_channels(total / samples)


def gradcam(
    model: nn.Module,
    inputs: Float[Tensor, "batch channels height width"],
    targets: Int[Tensor, " batch"],
    *,
    layer: str,
    interpolation: Literal["nearest", "bilinear"] = "bilinear",
) -> Float[Tensor, "batch height width"]:
    """GradCAM of a convolutional layer, resized to the inputs, min-max scaled per image.

    Args:
        layer: the name of the module, as in `named_modules()`.
        interpolation: how the map is resized.

    Raises:
        ValueError: no such layer.
    """
    found = dict(model.named_modules()).get(layer)
    if found is None or not layer:
        names = ", ".join(name for name, _ in model.named_modules() if name)
        raise ValueError(f"layer must be a module of the model, got {layer!r}; it has: {names}")
    seen: list[Tensor] = []

    def remember(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        seen.append(output)

    handle = found.register_forward_hook(remember)
    try:
        with torch.enable_grad():
            x = inputs.detach().clone().requires_grad_()
            logits = predict(model, x).gather(1, targets[:, None])
            slope = torch.autograd.grad(logits.sum(), seen[0])[0]
    finally:
        handle.remove()
    weights = slope.mean((2, 3), keepdim=True)
    cam = (weights * seen[0].detach()).sum(1, keepdim=True).relu()
    smooth = {} if interpolation == "nearest" else {"align_corners": False}
    cam = F.interpolate(cam, size=inputs.shape[2:], mode=interpolation, **smooth)[:, 0]
    low, high = (edge(cam, (1, 2)) for edge in (torch.amin, torch.amax))
    return (cam - low[:, None, None]) / (high - low).clamp(min=1e-12)[:, None, None]


def captum_explainer(
    method: str | type, *, layer: str | None = None, attribute: dict[str, Any] | None = None
) -> Explainer:
    """An explainer of Captum, which is imported when it is first called.

    Args:
        method: a class of `captum.attr` or its name: `IntegratedGradients`, `Saliency`,
            `Occlusion`, `LayerGradCam`, ... A class, since f and f_r are explained in turn.
        layer: for `Layer...` classes the name of the module; the map is resized to the inputs.
        attribute: keyword arguments of its `attribute()`. `nt_type` (with `nt_samples`, `stdevs`)
            puts a NoiseTunnel around the method.

    Raises:
        ValueError: a layer class without layer; when called: captum is not installed, or it has no
            such class.
    """
    name = method if isinstance(method, str) else method.__name__
    if name.startswith("Layer") != (layer is not None):
        raise ValueError(f"layer must be given for Layer… methods only, got {name!r}, {layer!r}")
    options = dict(attribute or {})

    def explain(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        captum = require("captum.attr", extra="vision")
        kind = getattr(captum, method, None) if isinstance(method, str) else method
        if not isinstance(kind, type):
            raise ValueError(f"method must be a class of captum.attr, got {method!r}")
        at = () if layer is None else (model.get_submodule(layer),)
        explainer = kind(model, *at)
        if "nt_type" in options:
            explainer = captum.NoiseTunnel(explainer)
        maps = explainer.attribute(inputs, target=targets, **options).detach()
        if maps.shape[2:] != inputs.shape[2:] and maps.ndim == 4:
            maps = F.interpolate(maps, size=inputs.shape[2:], mode="bilinear", align_corners=False)
        return _over_channels(maps)

    return explain


def embedding_gradient(
    model: nn.Module,
    inputs: dict[str, Tensor],
    targets: Int[Tensor, " batch"],
    *,
    embedding: nn.Module | None = None,
) -> Float[Tensor, "batch tokens"]:
    """Gradient × input at the embedding layer: scores of tokens.

    Args:
        embedding: the module that embeds `input_ids`; that of a transformers model unless given.
    """
    layer: Any = model if embedding is None else embedding
    if embedding is None:
        layer = layer.get_input_embeddings()
    seen: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[-1]

    handle = layer.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            logits = predict(model, inputs).gather(1, targets[:, None])
            slope = torch.autograd.grad(logits.sum(), seen[0])[0]
    finally:
        handle.remove()
    return (slope * seen[0].detach()).sum(-1)


def _path_integral(model: nn.Module, inputs: Tensor, targets: Tensor, steps: int) -> Tensor:
    total = torch.zeros_like(inputs)
    for step in range(steps):
        total += input_gradient(model, inputs * ((step + 0.5) / steps), targets)
    return inputs * total / steps


def _over_channels(maps: Tensor) -> Tensor:
    """Images lose their channel axis; other inputs are scored cell by cell."""
    return maps.sum(1) if maps.ndim == 4 else maps
