"""A transformers language model under pruning: set-up, calibration, history files, undoing."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ritornello.common.finite import all_finite
from ritornello.methods.probe_pruning import scores
from ritornello.methods.probe_pruning.architecture import take_apart
from ritornello.methods.probe_pruning.baselines import flap_head_cost, flap_layer_ratios
from ritornello.methods.probe_pruning.blocks import Block
from ritornello.methods.probe_pruning.config import ProbePruningConfig
from ritornello.methods.probe_pruning.flops import FlopCount, count_flops
from ritornello.methods.probe_pruning.history import BlockHistory
from ritornello.methods.probe_pruning.kept_linear import store_by_columns, store_by_rows
from ritornello.methods.probe_pruning.layer import PrunedLayer
from ritornello.methods.probe_pruning.probe import probe_positions
from ritornello.methods.probe_pruning.selection import (
    effective_ratio,
    num_channels_to_prune,
    num_heads_to_prune,
)
from ritornello.methods.probe_pruning.session import Residual, Selection, Session

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PrunedModel(nn.Module):
    """A causal language model whose decoder layers prune themselves for every batch.

    Made by `prune_model`; call it or `generate` as the model itself. Inference only. Selections are
    made on a prefill; while decoding from its cache they stay. Weights may be moved or cast
    afterwards; after changing them otherwise, calibrate again.
    """

    def __init__(self, model: "PreTrainedModel", config: ProbePruningConfig) -> None:
        super().__init__()
        parts = take_apart(model)
        self.model = model
        self.pruning = config
        self.session = Session()
        self.ratio = self._effective_ratio(len(parts))
        if config.parallel and not parts[0].norm_first:
            raise ValueError("parallel=True needs layers that normalise before their blocks")
        decoder: Any = model.get_decoder()
        self.layers: dict[int, PrunedLayer] = {}
        if config.method != "dense" and self.ratio > 0:
            for number, part in enumerate(parts):
                if number not in config.skip_layers:
                    layer = PrunedLayer(decoder.layers[number], number, part, config, self.session)
                    self.layers[number] = layer
                    self._install(layer)
        for layer in self.layers.values():
            layer.ratios = self._layer_ratios(layer.number)
        self._hooks = [
            decoder.register_forward_pre_hook(self._before_batch, with_kwargs=True),
            decoder.layers[0].register_forward_pre_hook(self._silence_pads),
        ]
        if config.parallel:
            for number in set(range(len(parts))) - set(self.layers):
                norm = parts[number].mlp_norm
                self._hooks.append(norm.register_forward_pre_hook(self._note_residual))
        self._shape, self._num_layers = parts[0].shape, len(parts)

    # --- use ---

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own forward."""
        return self.model(*args, **kwargs)

    @torch.no_grad()
    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own generate: pruned for the prompt, decoded with the same selection."""
        generate: Any = self.model.generate
        return generate(*args, **kwargs)

    @property
    def last_selection(self) -> dict[int, Selection]:
        """{layer: (kept heads, kept channels)} of the last prefill, ascending."""
        return dict(self.session.selection)

    def flops(self, batch: int, seq: int) -> FlopCount:
        """Analytic FLOPs of a prefill of (batch, seq) tokens, probes included."""
        if batch < 1 or seq < 1:
            raise ValueError(f"batch and seq must be at least 1, got {batch}, {seq}")
        kept = {number: self._num_kept(layer) for number, layer in self.layers.items()}
        probe = None
        if self.pruning.method == "full_batch":
            probe = (batch, seq)
        elif self.pruning.method == "probe":
            blank = torch.zeros(batch, seq, 1)
            chosen = probe_positions(blank, self.pruning.probe_ratios, self.pruning.order)
            probe = (len(chosen[0]), len(chosen[1]))
        return count_flops(self._shape, kept, self._num_layers, batch, seq, probe)

    # --- history ---

    @property
    def history(self) -> dict[str, BlockHistory]:
        """Histories that exist, by block: `layers.3.attention`, `layers.3.mlp`."""
        return {name: block.history for name, block in self._blocks() if block.history is not None}

    @torch.inference_mode(mode=False)  # the history goes on changing outside of it
    @torch.no_grad()
    def calibrate(self, batches: Iterable[Int[Tensor, "batch tokens"]]) -> None:
        """Fills the history from whole-length batches run through the dense model.

        An earlier history is dropped first.

        Raises:
            ValueError: there is no batch, or the batches differ in length.
        """
        self.reset_history()
        decoder: Any = self.model.get_decoder()
        device = next(self.model.parameters()).device
        count = 0
        with self._recording():
            for input_ids in batches:
                if input_ids.ndim != 2 or not input_ids.numel():
                    raise ValueError(
                        f"batches must hold (batch, tokens) ids, got shape {tuple(input_ids.shape)}"
                    )
                decoder(input_ids=input_ids.to(device), use_cache=False)
                count += 1
        if not count:
            raise ValueError("batches must hold at least one batch, got none")
        for _, block in self._blocks():
            block.past.finish()
        self._decide_static()

    def reset_history(self) -> None:
        """Forgets calibration and selections."""
        self.session.selection.clear()
        for layer in self.layers.values():
            layer.static = None
            for block in (layer.attention, layer.mlp):
                block.history = block.bias = None

    def save_history(self, path: str | Path) -> None:
        """Writes the history as safetensors.

        Raises:
            ValueError: there is none.
        """
        from safetensors.torch import save_file

        if not self.history:
            raise ValueError("there is no history to save: call calibrate(...) first")
        tensors = {}
        for name, history in self.history.items():
            tensors[f"{name}.samples"] = torch.tensor(history.samples)
            for field in ("energy", "mean", "fluctuation"):
                if (tensor := getattr(history, field)) is not None:
                    tensors[f"{name}.{field}"] = tensor.contiguous()
        save_file(tensors, path)

    @torch.inference_mode(mode=False)
    def load_history(self, path: str | Path) -> None:
        """Reads a history that `save_history` wrote for the same model and skipped layers.

        Raises:
            ValueError: no such file, or it does not fit this model or its score.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"path={str(path)!r} is not a readable history: {error}") from error
        self.reset_history()
        device = next(self.model.parameters()).device
        for name, block in self._blocks():
            energy = tensors.get(f"{name}.energy")
            if energy is None or energy.shape[-1] != block.last.in_features:
                raise ValueError(
                    f"path={str(path)!r} has no history of {name} with "
                    f"{block.last.in_features} channels"
                )
            block.history = BlockHistory(
                energy=energy,
                mean=tensors.get(f"{name}.mean"),
                fluctuation=tensors.get(f"{name}.fluctuation"),
                samples=int(tensors[f"{name}.samples"]),
            ).to(device)
            block.history.statistic(self.pruning.score)
        self._decide_static()

    # --- inside ---

    def _effective_ratio(self, num_layers: int) -> float:
        skipped = self.pruning.skip_layers
        if any(not 0 <= layer < num_layers for layer in skipped):
            raise ValueError(f"skip_layers must lie in [0, {num_layers}), got {skipped}")
        if self.pruning.method == "dense":
            return 0.0
        return effective_ratio(self.pruning.ratio, num_layers, len(skipped))

    def _layer_ratios(self, number: int) -> tuple[float, float]:
        given = self.pruning.per_layer_ratios
        if not isinstance(given, dict):
            return self.ratio, self.ratio
        if set(given) != set(self.layers):
            raise ValueError(
                f"per_layer_ratios must name the pruned layers {sorted(self.layers)}, "
                f"got {sorted(given)}"
            )
        return given[number]

    def _install(self, layer: PrunedLayer) -> None:
        for linear in (layer.parts.output, layer.parts.down):
            store_by_columns(linear)
        layer.layer.forward = layer.forward

    def _blocks(self) -> Iterator[tuple[str, Block]]:
        for number, layer in self.layers.items():
            yield f"layers.{number}.attention", layer.attention
            yield f"layers.{number}.mlp", layer.mlp

    def _num_kept(self, layer: PrunedLayer) -> tuple[int, int]:
        """Query channels and MLP channels that a layer keeps."""
        parts = layer.parts
        if layer.static is not None:
            return len(layer.static[0]) * parts.head_dim, len(layer.static[1])
        heads = parts.heads - num_heads_to_prune(parts.heads, layer.ratios[0])
        hidden = parts.down.in_features
        pruned = num_channels_to_prune(hidden, layer.ratios[1], self.pruning.multiple)
        return heads * parts.head_dim, hidden - pruned

    def _decide_static(self) -> None:
        if self.pruning.method != "static":
            return
        layers = list(self.layers.values())
        if self.pruning.per_layer_ratios == "flap" and layers:
            for layer, ratios in zip(layers, self._flap_ratios(layers), strict=True):
                layer.ratios = ratios
        for layer in layers:
            layer.decide_static()

    def _flap_ratios(self, layers: list[PrunedLayer]) -> list[tuple[float, float]]:
        def ranked(blocks: list[Block]) -> list[Tensor]:
            score = self.pruning.score
            return [scores.score_channels(b.static_energy(), b.columns, score) for b in blocks]

        parts = layers[0].parts
        cost = flap_head_cost(
            parts.query.in_features,
            parts.head_dim,
            len(layers[0].mlp.past.energy),
            grouped=parts.grouped,
            gated=len(parts.front) == 2,
        )
        return flap_layer_ratios(
            ranked([layer.attention for layer in layers]),
            ranked([layer.mlp for layer in layers]),
            parts.heads,
            self.ratio,
            cost,
        )

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Inside, layers run whole and the inputs of their last matrices are recorded."""

        def recorder(block: Block):
            def record(_: nn.Module, args: tuple[Tensor, ...]) -> None:
                # OPT flattens batch and tokens before its MLP.
                block.record(args[0].view(*self._batch_shape, -1))

            return record

        hooks = [b.last.register_forward_pre_hook(recorder(b)) for _, b in self._blocks()]
        self.session.calibrating = True
        try:
            yield
        finally:
            self.session.calibrating = False
            for hook in hooks:
                hook.remove()

    def _before_batch(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Checks a batch and opens the session for it."""
        ids = args[0] if args else kwargs.get("input_ids")
        given = ids if ids is not None else kwargs["inputs_embeds"]
        self._batch_shape = tuple(given.shape[:2])
        if not given.numel():
            raise ValueError(f"input_ids must not be empty, got shape {tuple(given.shape)}")
        mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
        store = kwargs.get("cache", kwargs.get("past_key_values"))
        self.session.begin(mask, store, self._batch_shape[1])
        if self.session.calibrating or self.session.decoding:
            return
        if self.pruning.reads_history and self.layers:
            self._check_history(self._batch_shape[1])

    def _check_history(self, tokens: int) -> None:
        layer = next(iter(self.layers.values()))
        if layer.mlp.history is None:
            raise ValueError(
                f"method={self.pruning.method!r} with fusion={self.pruning.fusion!r} reads the "
                "history: call calibrate(...) or load_history(...) first"
            )
        longest = len(layer.mlp.past.energy)
        if self.pruning.method == "probe" and tokens > longest:
            raise ValueError(
                f"input_ids has {tokens} tokens but the history covers {longest}: "
                "calibrate with longer batches"
            )

    def _silence_pads(self, _: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Zeroes what enters the first layer at pads, and refuses what is not finite."""
        hidden, *rest = args
        if not all_finite(hidden):
            raise ValueError("the embedded input must be finite, got NaN or infinity")
        present = self.session.present
        if present is not None and not self.session.decoding:
            hidden = hidden.masked_fill(~present[..., None], 0)
        return (hidden, *rest)

    def _note_residual(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.session.previous_residual = Residual(args[0].view(*self._batch_shape, -1))

    def _release(self) -> "PreTrainedModel":
        for hook in self._hooks:
            hook.remove()
        for layer in self.layers.values():
            del layer.layer.forward
            for linear in (layer.parts.output, layer.parts.down):
                store_by_rows(linear)
        self._hooks, self.layers = [], {}
        return self.model


def prune_model(model: "PreTrainedModel", cfg: ProbePruningConfig | None = None) -> PrunedModel:
    """Puts a causal language model under pruning, in place; weights are shared, none is lost.

    Args:
        model: a Llama, Mistral, Qwen2 or OPT causal language model of transformers.
        cfg: the arm; Probe Pruning at 40 % by default.

    Raises:
        ValueError: the architecture is not supported, the model is pruned already, or the
            configuration does not fit it.
    """
    if isinstance(model, PrunedModel) or _is_pruned(model):
        raise ValueError("model is pruned already: unwrap(...) it first")
    return PrunedModel(model, cfg or ProbePruningConfig())


def unwrap(pruned: PrunedModel) -> "PreTrainedModel":
    """Gives the model back as it was before `prune_model`."""
    return pruned._release()


def _is_pruned(model: nn.Module) -> bool:
    forwards = (module.__dict__.get("forward") for module in model.modules())
    return any(isinstance(getattr(f, "__self__", None), PrunedLayer) for f in forwards)
