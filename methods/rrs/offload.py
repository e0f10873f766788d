"""Models larger than the device: their decoder layers wait in memory and come one at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ritornello.methods.rrs.families import decoder_of, layers_of
from ritornello.methods.rrs.linear import QuantLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def offload_layers(model: "PreTrainedModel", device: torch.device | str) -> "PreTrainedModel":
    """Puts everything but the decoder layers on `device`; a layer is there while it works.

    The model is used, quantised and saved as any other. A forward copies every layer to the device
    once; quantising works on one layer at a time.

    Args:
        model: a supported causal language model on the CPU, quantised or not.
        device: where it computes.

    Raises:
        ValueError: unsupported architecture, or the layers do not lie on the CPU.
    """
    layers = layers_of(model)
    places = {tensor.device.type for tensor in _tensors(layers)}
    if places != {"cpu"}:
        raise ValueError(f"the layers of model must lie on the CPU, they lie on {sorted(places)}")
    decoder_of(model).layers = nn.ModuleList()
    try:
        model.to(device)  # type: ignore[reportArgumentType]  # the stub's decorator hides `self`
    finally:
        decoder_of(model).layers = layers
    for layer in layers:
        guest = _Guest(layer, torch.device(device))
        layer.register_forward_pre_hook(guest.arrive)
        layer.register_forward_hook(guest.leave, always_call=True)
        layer.guest = guest  # type: ignore[assignment]  # a plain attribute, no module
    return model


def offload_device(model: "PreTrainedModel") -> torch.device | None:
    """Where an offloaded model computes; None for a model that lies on its device."""
    guest = getattr(layers_of(model)[0], "guest", None)
    return None if guest is None else guest.device


def working_layers(model: "PreTrainedModel") -> Iterator[nn.Module]:
    """The decoder layers one after the other, each on the model's device while it is worked on.

    What is changed there comes back with the layer.
    """
    for layer in layers_of(model):
        guest = getattr(layer, "guest", None)
        if guest is None:
            yield layer
        else:
            with guest.staying():
                yield layer


class _Guest:
    """Takes a layer to the device and back."""

    def __init__(self, layer: nn.Module, device: torch.device) -> None:
        self.layer, self.device = layer, device
        self.stays = False
        self.at_home: list[tuple[Tensor, Tensor]] = []

    def arrive(self, *_: object) -> None:
        """Copies the layer's tensors to the device; the originals stay where they are."""
        if not self.stays:
            self.at_home = [(tensor, tensor.data) for tensor in _tensors(self.layer)]
            for tensor, values in self.at_home:
                with torch.inference_mode(tensor.is_inference()):
                    tensor.data = values.to(self.device, copy=True)

    def leave(self, *_: object) -> None:
        """Drops the copies: a forward changes nothing."""
        for tensor, values in self.at_home:
            with torch.inference_mode(tensor.is_inference()):
                tensor.data = values
        self.at_home = []
        if not self.stays:
            for module in self.layer.modules():
                if isinstance(module, QuantLinear):
                    module.drop_unpacked()

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Moves the layer to the device, and back in the end with all that was changed."""
        self.stays = True
        self.layer.to(self.device)
        try:
            yield
        finally:
            self.stays = False
            self.layer.to("cpu")


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()
