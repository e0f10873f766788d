"""Adaptive clustering inside models that already exist, by hooks on their gates."""

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ritornello.common.moe import RoutingState
from ritornello.methods.ac_router.router import AdaptiveWeights


class RoutingThread:
    """Carries the routing state from one MoE layer to the next inside one forward pass."""

    def __init__(self) -> None:
        self.state: RoutingState | None = None
        self.token_mask: Tensor | None = None

    def reset(self) -> None:
        """Forgets the state: assignments of another batch must never be used."""
        self.state = None
        self.token_mask = None


class AttachedRouter:
    """Handle of `attach_ac_router`; a context manager that detaches at its end.

    Attributes:
        layers: names of the gates that are scaled, in order, with their weights modules.
    """

    def __init__(self, model: nn.Module, layers: dict[str, AdaptiveWeights]) -> None:
        self.model = model
        self.layers = layers
        self.states: list[RoutingState] = []
        self._thread = RoutingThread()
        self._handles: list[RemovableHandle] = []

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
        """Runs `forward` once and lets its tokens enter the running averages of all layers."""
        for weights in self.layers.values():
            if weights.statistics != "running":
                raise ValueError("calibrate needs statistics='running', got 'batch'")
            weights.train()
        try:
            forward()
        finally:
            for weights in self.layers.values():
                weights.eval()

    def _begin(self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._thread.reset()
        self.states = []
        mask = kwargs.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.dim() != 2:
            return
        inputs = kwargs.get("input_ids")
        if inputs is None:
            inputs = kwargs.get("inputs_embeds", args[0] if args else None)
        if isinstance(inputs, Tensor):  # with a cache the mask also covers the past
            self._thread.token_mask = mask[:, -inputs.shape[1] :].bool().reshape(-1)

    def _end(self, model: nn.Module, args: tuple[object, ...], output: object) -> None:
        self._thread.reset()

    def _scale(self, weights: AdaptiveWeights) -> Callable[..., tuple[Tensor]]:
        def hook(gate: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            tokens = args[0].reshape(-1, args[0].shape[-1])
            if self._thread.state is None:
                return (tokens,)
            scale = weights(tokens, self._thread.state, self._thread.token_mask)
            return (tokens * scale.to(tokens.dtype),)

        return hook

    def _remember(self, gate: nn.Module, args: tuple[Tensor, ...], output: object) -> None:
        logits, scores, indices = output
        self._thread.state = RoutingState(indices.detach(), scores.detach(), logits.detach())
        self.states.append(self._thread.state)

    def hook(self, gates: dict[str, nn.Module]) -> None:
        """Puts the hooks on the model and its gates."""
        self._handles.append(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
        self._handles.append(self.model.register_forward_hook(self._end, always_call=True))
        for name, gate in gates.items():
            if name in self.layers:
                scale = self._scale(self.layers[name])
                self._handles.append(gate.register_forward_pre_hook(scale))
            self._handles.append(gate.register_forward_hook(self._remember))


def attach_ac_router(
    model: nn.Module,
    *,
    layers: Sequence[int] | None = None,
    skip_first: int = 1,
    **weight_options: float | str | bool | None,
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
    chosen = range(skip_first, len(gates)) if layers is None else layers
    wrong = [layer for layer in chosen if not skip_first <= layer < len(gates)]
    if wrong or not len(chosen):
        raise ValueError(
            f"layers must name MoE layers in [skip_first={skip_first}, {len(gates)}), "
            f"got {list(chosen)}"
        )
    names = list(gates)
    weights: dict[str, AdaptiveWeights] = {}
    for layer in chosen:
        weight = gates[names[layer]].weight
        module = AdaptiveWeights(weight.shape[1], weight.shape[0], **weight_options)
        weights[names[layer]] = module.to(weight.device).eval()
    attached = AttachedRouter(model, weights)
    attached.hook(gates)
    return attached


def _find_gates(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """The top-k gates of the model in the order of its layers."""
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        is_router = type(module).__name__.endswith("TopKRouter")
        if is_router and isinstance(weight, Tensor) and weight.dim() == 2:
            yield name, module
