"""Adaptive clustering inside models that already exist, by hooks on their gates."""

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ritornello.common.moe import RoutingState
from ritornello.methods.ac_router.router import AdaptiveWeights
from ritornello.methods.ac_router.thread import RoutingThread


class AttachedRouter:
    """Handle of `attach_ac_router`; a context manager that detaches at its end.

    Attributes:
        layers: the weights module of every scaled gate, by the gate's name.
    """

    def __init__(self, model: nn.Module, gates: dict[str, nn.Module], **weight_options: Any):
        self.layers: dict[str, AdaptiveWeights] = {}
        for name, gate in gates.items():
            weight = gate.weight
            assert isinstance(weight, Tensor)
            adaptive = AdaptiveWeights(weight.shape[1], weight.shape[0], **weight_options)
            self.layers[name] = adaptive.to(weight.device).eval()
        self._thread = RoutingThread()
        self._calibrating = False
        self._handles: list[RemovableHandle] = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end, always_call=True),
        ]

    @property
    def states(self) -> list[RoutingState]:
        """Routing of every MoE layer in the model's last forward pass."""
        return self._thread.states

    def __enter__(self) -> "AttachedRouter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def detach(self) -> None:
        """Removes all hooks: the model is what it was before."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @torch.no_grad()
    def calibrate(self, forward: Callable[[], object]) -> None:
        """Calls `forward` (which runs the model) and averages its tokens' statistics.

        Raises:
            ValueError: unless the router was attached with `statistics="running"`.
        """
        if any(weights.statistics != "running" for weights in self.layers.values()):
            raise ValueError("calibrate needs statistics='running', got 'batch'")
        self._calibrating = True
        try:
            forward()
        finally:
            self._calibrating = False

    def follow(self, name: str, gate: nn.Module) -> None:
        """Reads the gate's decisions, and scales its input if it is one of `layers`."""
        if name in self.layers:
            hook = self._scaler(self.layers[name])
            self._handles.append(gate.register_forward_pre_hook(hook))
        self._handles.append(gate.register_forward_hook(self._remember))

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        inputs = kwargs.get("input_ids")
        if inputs is None:
            inputs = args[0] if args else kwargs.get("inputs_embeds")
        token_mask = None
        if isinstance(mask, Tensor) and mask.dim() == 2 and isinstance(inputs, Tensor):
            # With a cache the mask also covers the past: its last columns are the tokens at hand.
            token_mask = mask[:, -inputs.shape[1] :].bool().reshape(-1)
        self._thread.begin(token_mask)

    def _end(self, model: nn.Module, args: tuple[Any, ...], output: object) -> None:
        self._thread.end()

    def _scaler(self, weights: AdaptiveWeights) -> Callable[..., tuple[Tensor]]:
        def scale(gate: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            if not self._thread.active:
                raise RuntimeError(
                    "a gate ran outside its model's forward pass (gradient checkpointing does "
                    "that): the previous layer's assignment is not known there"
                )
            weights.train(gate.training or self._calibrating)
            tokens = args[0].reshape(-1, args[0].shape[-1])
            factor = weights(tokens, self._thread.previous, self._thread.token_mask)
            return (tokens * factor.to(tokens.dtype),)

        return scale

    def _remember(self, gate: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        logits, scores, indices = output
        self._thread.states.append(RoutingState(indices.detach(), scores.detach(), logits.detach()))


def attach_ac_router(
    model: nn.Module,
    *,
    layers: Sequence[int] | None = None,
    skip_first: int = 1,
    **weight_options: Any,
) -> AttachedRouter:
    """Scales the gates' inputs of a transformers MoE model by adaptive clustering weights.

    For models whose gates return (logits, scores, indices): Mixtral, OLMoE, Qwen2/3-MoE. The gates
    keep their own weights, softmax and normalisation, the experts keep seeing the unscaled
    tokens; with unit weights the model is exactly the original one. The state is reset at
    every forward pass; a two-dimensional `attention_mask` keeps padding out of the statistics.

    Args:
        model: any module that contains such gates.
        layers: numbers of the MoE layers to scale, counted among the MoE layers from 0; all but
            the first `skip_first` when None.
        skip_first: how many MoE layers must stay ordinary.
        **weight_options: keyword arguments of `AdaptiveWeights`. For generation use
            `statistics="running"` and `calibrate`.

    Returns:
        A handle: a context manager, or call `detach()`.

    Raises:
        ValueError: for a model without such gates, or layers that cannot be scaled.
    """
    gates = dict(_find_gates(model))
    if len(gates) < 2:
        raise ValueError(
            f"model must have at least 2 gates that return (logits, scores, indices), as "
            f"Mixtral, OLMoE and Qwen-MoE of transformers do; {type(model).__name__} has "
            f"{len(gates)}"
        )
    if skip_first < 1:
        raise ValueError(f"skip_first must be at least 1: no clusters before it, got {skip_first}")
    chosen = list(range(skip_first, len(gates)) if layers is None else layers)
    if not chosen or any(not skip_first <= layer < len(gates) for layer in chosen):
        raise ValueError(
            f"layers must name MoE layers in [skip_first={skip_first}, {len(gates)}), got {chosen}"
        )
    names = list(gates)
    scaled = {names[layer]: gates[names[layer]] for layer in chosen}
    attached = AttachedRouter(model, scaled, **weight_options)
    for name, gate in gates.items():
        attached.follow(name, gate)
    return attached


def _find_gates(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """The top-k gates of the model in the order of its layers."""
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        is_router = type(module).__name__.endswith("TopKRouter")
        if is_router and isinstance(weight, Tensor) and weight.dim() == 2:
            yield name, module
