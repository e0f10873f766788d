"""The multimodal encoder: encoders, adapters and fusion; any subset of modalities goes in."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ritornello.methods.comm.fusion import FusionTransformer


def projected_subsets(n_modalities: int) -> list[list[bool]]:
    """Each modality alone, then all together: the n + 1 masks of eq. 6."""
    alone = [[i == m for i in range(n_modalities)] for m in range(n_modalities)]
    return [*alone, [True] * n_modalities]


class MultimodalEncoder(nn.Module):
    """x_1 … x_n → encoder → adapter → tokens → fusion → one embedding.

    An encoder may yield tokens (batch, tokens, width), a map (batch, channels, height, width) or a
    vector (batch, features) for its adapter, or a mapping with `token_embeddings` and
    `attention_mask`. The mask is True for padding, as the official text encoders give it.

    Args:
        encoders: one a modality.
        adapters: one a modality; None where the encoder yields tokens.
        fusion: joins the tokens.
        legacy_ignore_padding: the official training, which computes padding masks and drops them
            where subsets are asked for (evaluation uses them).

    Raises:
        ValueError: another number of adapters than of encoders.
    """

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        adapters: Sequence[nn.Module | None],
        fusion: FusionTransformer,
        *,
        legacy_ignore_padding: bool = False,
    ) -> None:
        super().__init__()
        if not encoders or len(encoders) != len(adapters):
            raise ValueError(
                "encoders and adapters must be of one length, at least 1, "
                f"got {len(encoders)} and {len(adapters)}"
            )
        self.encoders = nn.ModuleList(encoders)
        self.input_adapters = nn.ModuleList(a if a is not None else nn.Identity() for a in adapters)
        self.fusion_transformer = fusion
        self.legacy_ignore_padding = legacy_ignore_padding

    @property
    def n_modalities(self) -> int:
        """How many modalities there are, missing ones included."""
        return len(self.encoders)

    def tokens(self, inputs: Sequence[Any]) -> tuple[list[Tensor], list[Tensor | None]]:
        """Tokens and padding masks of the modalities that are not None, in order."""
        tokens: list[Tensor] = []
        padding: list[Tensor | None] = []
        for x, encoder, adapter in zip(inputs, self.encoders, self.input_adapters, strict=True):
            if x is None:
                continue
            encoded, mask = encoder(x), None
            if isinstance(encoded, Mapping):
                encoded, mask = encoded["token_embeddings"], encoded["attention_mask"].bool()
            tokens.append(adapter(encoded))
            padding.append(mask)
        return tokens, padding

    def forward(
        self, inputs: Sequence[Any], subsets: Sequence[Sequence[bool]] | None = None
    ) -> Float[Tensor, "batch width"] | list[Float[Tensor, "batch width"]]:
        """The embedding of all modalities that are there, or one for each subset of them.

        Args:
            inputs: one entry a modality; None where it is missing.
            subsets: for each embedding wanted, whether a modality goes in.

        Raises:
            ValueError: another number of modalities, all of them missing, an empty subset or one
                that asks for a missing modality, batches of different sizes.
        """
        there = self._check(inputs, subsets)
        tokens, padding = self.tokens(inputs)
        if len({len(t) for t in tokens}) > 1:
            raise ValueError(
                f"inputs must be batches of one size, got {[len(t) for t in tokens]} samples"
            )
        if subsets is None:
            return self.fusion_transformer(tokens, padding)
        kept = [[bool(s[m]) for m in there] for s in subsets]
        masks = None if self.legacy_ignore_padding else padding
        return list(self.fusion_transformer.subsets(tokens, kept, masks))

    def embed_views(
        self, views: Sequence[Sequence[Any]], subsets: Sequence[Sequence[bool]]
    ) -> Float[Tensor, "views subsets batch width"]:
        """Embeddings of several views of one batch: encoders once a view, fusion once for all."""
        for view in views:
            self._check(view, subsets)
        encoded = [self.tokens(view) for view in views]
        lengths = [{t[m].shape[1] for t, _ in encoded} for m in range(self.n_modalities)]
        if any(len(length) > 1 for length in lengths):  # views of different lengths stay apart
            return torch.stack([torch.stack(self(view, subsets)) for view in views])
        joined = [torch.cat(pieces) for pieces in zip(*(t for t, _ in encoded), strict=True)]
        masks: list[Bool[Tensor, "batch tokens"] | None] | None = None
        if not self.legacy_ignore_padding:
            masks = [
                None if pieces[0] is None else torch.cat(pieces)  # type: ignore[arg-type]
                for pieces in zip(*(p for _, p in encoded), strict=True)
            ]
        fused = self.fusion_transformer.subsets(joined, subsets, masks)
        return fused.unflatten(1, (len(views), -1)).transpose(0, 1)

    def _check(self, inputs: Sequence[Any], subsets: Sequence[Sequence[bool]] | None) -> list[int]:
        n = self.n_modalities
        if isinstance(inputs, Tensor) or len(inputs) != n:
            raise ValueError(
                f"inputs must be a list of {n} modalities (None where one is missing), "
                f"got {'a tensor' if isinstance(inputs, Tensor) else len(inputs)}"
            )
        there = [m for m, x in enumerate(inputs) if x is not None]
        if not there:
            raise ValueError("all modalities are missing: give at least one that is not None")
        for subset in subsets or ():
            wanted = [m for m, used in enumerate(subset) if used]
            if len(subset) != n or not wanted or not set(wanted) <= set(there):
                raise ValueError(
                    f"a subset must name {n} modalities, at least one of them used, and only those "
                    f"given ({there}), got {list(subset)}"
                )
        return there
