"""One decoder layer under pruning: the algorithm of section 3, block by block."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ritornello.methods.probe_pruning.architecture import LayerParts, Rotary
from ritornello.methods.probe_pruning.blocks import AttentionBlock, Block, MLPBlock
from ritornello.methods.probe_pruning.config import ProbePruningConfig
from ritornello.methods.probe_pruning.session import Residual, Selection, Session


class PrunedLayer:
    """Stands in for the forward of one decoder layer; the module and its weights stay as they are.

    Attributes:
        ratios: shares of heads and of channels to remove.
        static: what a static baseline keeps.
    """

    def __init__(
        self,
        layer: nn.Module,
        number: int,
        parts: LayerParts,
        config: ProbePruningConfig,
        session: Session,
    ) -> None:
        self.layer = layer
        self.number = number
        self.parts = parts
        self.config = config
        self.session = session
        self.attention = AttentionBlock(parts, config)
        self.mlp = MLPBlock(parts, config)
        self.ratios = (0.0, 0.0)
        self.static: Selection | None = None

    def decide_static(self) -> None:
        """Chooses once, from the history."""
        heads = self.attention.pick(self.attention.static_energy(), self.ratios[0])
        channels = self.mlp.pick(self.mlp.static_energy(), self.ratios[1])
        self.static = heads, channels
        if self.config.bias_compensation:
            self.attention.compensate(self.attention.channels(heads))
            self.mlp.compensate(channels)

    @torch.no_grad()
    def forward(
        self,
        hidden_states: Float[Tensor, "B S D"],
        attention_mask: Tensor | None = None,
        position_embeddings: Rotary | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Float[Tensor, "B S D"]:
        """The layer's output; arguments as transformers passes them."""
        session, x = self.session, hidden_states
        if session.calibrating:
            return type(self.layer).forward(
                self.layer,
                hidden_states,
                attention_mask=attention_mask,
                position_embeddings=position_embeddings,
                **kwargs,
            )
        # The argument was called past_key_values in earlier releases of transformers.
        store = cache if cache is not None else past_key_values
        choose_heads, choose_channels = self._choosers(
            x, attention_mask, position_embeddings, store
        )

        heads = choose_heads()
        slot = None if store is None else (store, self.number)
        u, kept = self.attention.run(
            self.attention.normalise(x), heads, attention_mask, position_embeddings, slot
        )
        x = self._joined(self.attention, x, u, kept, self.parts.attention_norm)
        if self.config.parallel:
            session.previous_residual = Residual(x)

        channels = choose_channels(x)
        u = self.mlp.run(self.mlp.normalise(x), channels)
        x = self._joined(self.mlp, x, u, channels, self.parts.mlp_norm)
        if not session.decoding:
            session.remember(self.number, (heads, channels), store)
        return x

    def _joined(
        self, block: Block, x: Tensor, u: Tensor, kept: Tensor, norm: nn.Module
    ) -> Float[Tensor, "B S D"]:
        """Updates the history with u and adds the block's output to the residual stream."""
        session = self.session
        if session.present is not None and not session.decoding:
            u = u.masked_fill(~session.present[..., None], 0)
        if self.config.updates_history and not session.decoding:
            block.follow(u, kept, session.present)
        x = x + block.finish(u, kept)
        return x if self.parts.norm_first else norm(x)

    def _choosers(
        self, x: Tensor, mask: Tensor | None, rotary: Rotary | None, store: Any
    ) -> tuple[Callable[[], Tensor], Callable[[Tensor], Tensor]]:
        """Two functions: the heads to keep, and the channels given the MLP's residual."""
        session, (head_ratio, channel_ratio) = self.session, self.ratios
        chosen = self.static
        if session.decoding and chosen is None:
            chosen = session.recall(self.number, store, own_heads_cached=not self.parts.grouped)
        if chosen is not None:
            return (lambda: chosen[0]), (lambda _: chosen[1])

        def heads(residual: Tensor) -> Tensor:
            return self.attention.choose(residual, head_ratio, mask, rotary, session.present)

        def channels(residual: Tensor) -> Tensor:
            return self.mlp.choose(residual, channel_ratio, session.present)

        if not self.config.parallel:
            return (lambda: heads(x)), channels
        entering = Residual(x)
        heads_ahead = session.choose_ahead(heads, session.previous_residual or entering)
        channels_ahead = session.choose_ahead(channels, entering)
        return heads_ahead, (lambda _: channels_ahead())
