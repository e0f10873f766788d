"""What the layers of one pruned model share while a batch runs through them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Selection = tuple[Int[Tensor, " heads"], Int[Tensor, " channels"]]


@dataclass
class Session:
    """State of the current batch.

    Attributes:
        calibrating: layers run whole and their inner states are recorded.
        decoding: a cache already holds tokens: the selection of its prefill stays.
        present: false at pads; None for a batch without pads.
        selection: what each layer kept last.
        previous_residual: what entered the MLP of the layer before (PP-Parallel).
    """

    calibrating: bool = False
    decoding: bool = False
    present: Bool[Tensor, "batch tokens"] | None = None
    selection: dict[int, Selection] = field(default_factory=dict)
    previous_residual: "Residual | None" = None
    _by_cache: WeakKeyDictionary[Any, dict[int, Selection]] = field(
        default_factory=WeakKeyDictionary
    )
    _side: torch.cuda.Stream | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Weak references and streams stay behind: a copy has seen no cache yet.
        return self.__dict__ | {"_by_cache": {}, "_side": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _by_cache=WeakKeyDictionary())

    def begin(self, attention_mask: Tensor | None, cache: Any, tokens: int) -> None:
        """Reads the pads of a new batch, and whether it goes on from a cache."""
        self.previous_residual = None
        self.decoding = cache is not None and bool(cache.get_seq_length() > 0)
        self.present = None
        if attention_mask is not None and attention_mask.ndim == 2:
            present = attention_mask[:, -tokens:].bool()
            self.present = None if bool(present.all()) else present

    def remember(self, layer: int, chosen: Selection, cache: Any) -> None:
        """Keeps what a prefill selected, beside its cache."""
        self.selection[layer] = chosen
        if cache is not None:
            self._by_cache.setdefault(cache, {})[layer] = chosen

    def recall(self, layer: int, cache: Any, *, own_heads_cached: bool) -> Selection:
        """What the prefill of `cache` selected.

        Raises:
            ValueError: the cache is of another model or was copied, and holds the keys of unknown
                heads.
        """
        chosen = self._by_cache.get(cache, {}).get(layer)
        if chosen is None and not own_heads_cached:
            chosen = self.selection.get(layer)
        if chosen is None:
            raise ValueError(
                "cache must come from a prefill of this pruned model (not a copy of it): "
                "the heads whose keys it holds are not known"
            )
        return chosen

    def choose_ahead(
        self, choose: Callable[[Tensor], Tensor], residual: "Residual"
    ) -> Callable[[], Tensor]:
        """Starts a selection beside the main stream; calling the answer waits for it.

        On the CPU it is done at once.
        """
        states = residual.states
        if residual.ready is None:
            chosen = choose(states)
            return lambda: chosen
        main = torch.cuda.current_stream(states.device)
        if self._side is None or self._side.device != states.device:
            self._side = torch.cuda.Stream(states.device)
        side = self._side
        side.wait_event(residual.ready)
        with torch.cuda.stream(side):
            chosen = choose(states)
        states.record_stream(side)

        def wait() -> Tensor:
            main.wait_stream(side)
            chosen.record_stream(main)
            return chosen

        return wait


class Residual:
    """A residual stream and, on the GPU, the moment from which it can be read."""

    def __init__(self, states: Float[Tensor, "batch tokens dim"]) -> None:
        self.states = states
        self.ready: torch.cuda.Event | None = None
        if states.is_cuda:
            self.ready = torch.cuda.Event()
            self.ready.record(torch.cuda.current_stream(states.device))
