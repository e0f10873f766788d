"""Fusion of the tokens of several modalities into one embedding (section 3.2 of the paper)."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ritornello.methods.comm.attention import ResidualAttentionBlock


class FusionTransformer(nn.Module):
    """Self-attention over the concatenated tokens, or attention between modalities.

    `subsets` gives the embeddings of many subsets of the modalities at the cost of little more than
    one: hidden tokens get attention weights of exactly zero, keys and values of the first block are
    shared by all subsets, and the last block is computed for the class token alone, without them.

    Args:
        width: channels of tokens and embedding.
        n_heads: heads; divides `width`.
        n_layers: blocks.
        fusion: `concat` (the paper's), or `x-attn`, where every modality attends to all others.
        pool: `cls` (a learned token), or `mean` over the tokens that are there.
        add_bias_kv: a learned token among keys and values.
        dropout: rate on attention weights.
        n_modalities: with `x-attn`, how many have blocks of their own.

    Raises:
        ValueError: sizes that do not fit, an unknown fusion or pool, `x-attn` with `cls`.
    """

    def __init__(
        self,
        width: int,
        n_heads: int = 8,
        n_layers: int = 1,
        fusion: Literal["concat", "x-attn"] = "concat",
        pool: Literal["cls", "mean"] = "cls",
        add_bias_kv: bool = False,
        dropout: float = 0.0,
        *,
        n_modalities: int = 2,
    ) -> None:
        super().__init__()
        if width < 1 or n_heads < 1 or width % n_heads:
            raise ValueError(f"width must be a multiple of n_heads={n_heads}, got {width}")
        if n_layers < 1:
            raise ValueError(f"n_layers must be at least 1, got {n_layers}")
        if fusion not in ("concat", "x-attn") or pool not in ("cls", "mean"):
            raise ValueError(
                "fusion must be 'concat' or 'x-attn' and pool 'cls' or 'mean', "
                f"got {fusion!r} and {pool!r}"
            )
        if fusion == "x-attn" and pool == "cls":
            raise ValueError("fusion='x-attn' has no class token: pool must be 'mean'")
        self.width, self.fusion, self.pool = width, fusion, pool
        self.norm = nn.LayerNorm(width)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width)) if pool == "cls" else None

        def block() -> ResidualAttentionBlock:
            return ResidualAttentionBlock(
                width, n_heads, layers=n_layers, cross=fusion == "x-attn",
                add_bias_kv=add_bias_kv, dropout=dropout,
            )  # fmt: skip

        if fusion == "concat":
            self.resblocks = nn.ModuleList(block() for _ in range(n_layers))
        else:
            self.resblocks = nn.ModuleList(
                nn.ModuleList(block() for _ in range(n_layers)) for _ in range(n_modalities)
            )

    def forward(
        self,
        tokens: Sequence[Float[Tensor, "batch _ width"]],
        key_padding_mask: Sequence[Bool[Tensor, "batch _"] | None] | None = None,
    ) -> Float[Tensor, "batch width"]:
        """The embedding of all given tokens.

        Args:
            tokens: one tensor a modality; their numbers of tokens may differ.
            key_padding_mask: True where a token is padding.

        Raises:
            ValueError: no tokens, another width, masks that do not fit, a sample without tokens.
        """
        return self.subsets(tokens, [[True] * len(tokens)], key_padding_mask)[0]

    def subsets(
        self,
        tokens: Sequence[Float[Tensor, "batch _ width"]],
        subsets: Sequence[Sequence[bool]],
        key_padding_mask: Sequence[Bool[Tensor, "batch _"] | None] | None = None,
    ) -> Float[Tensor, "subsets batch width"]:
        """The embedding of each subset of the modalities, as if the others were not there.

        Args:
            tokens, key_padding_mask: as in `forward`.
            subsets: for each subset, whether a modality is in it.
        """
        hidden = self._hidden(tokens, subsets, key_padding_mask)
        if self.fusion == "x-attn":
            return self._cross_attention(tokens, subsets, hidden)
        joined = torch.cat(list(tokens), dim=1)
        if self.cls_token is not None:
            cls = self.cls_token.to(joined.dtype).expand(len(joined), -1, -1)
            joined = torch.cat([cls, joined], dim=1)
            hidden = F.pad(hidden, (1, 0))  # the class token is never hidden
        # The tokens go in once for all subsets; from the first block on they differ by subset.
        x, last = joined.unsqueeze(0), len(self.resblocks) - 1
        for place, block in enumerate(self.resblocks):
            assert isinstance(block, ResidualAttentionBlock)
            attended = hidden
            if block.attn.bias_k is not None:
                attended = F.pad(hidden, (0, 1))  # nor is the learned key
            queries = x[..., :1, :] if place == last and self.pool == "cls" else x
            x = block(queries, attended[:, :, None, None, :], context=x)
        if self.pool == "cls":
            return self.norm(x[..., 0, :])
        return self._mean(self.norm(x), hidden)

    def _mean(self, x: Tensor, hidden: Tensor) -> Tensor:
        there = (~hidden).to(x.dtype).unsqueeze(-1)
        return (x * there).sum(dim=-2) / there.sum(dim=-2)

    def _cross_attention(
        self, tokens: Sequence[Tensor], subsets: Sequence[Sequence[bool]], hidden: Tensor
    ) -> Tensor:
        """Each modality attends to the others of the subset; alone, to itself."""
        lengths = [t.shape[1] for t in tokens]
        parts = hidden.split(lengths, dim=-1)
        embeddings = []
        for number, subset in enumerate(subsets):
            chosen = [m for m, there in enumerate(subset) if there]
            if max(chosen) >= len(self.resblocks):
                raise ValueError(
                    f"the transformer was built for n_modalities={len(self.resblocks)}, "
                    f"got {len(tokens)}"
                )
            updated = []
            for m in chosen:
                others = [o for o in chosen if o != m] or [m]
                context = torch.cat([tokens[o] for o in others], dim=1)
                mask = torch.cat([parts[o][number] for o in others], dim=-1)
                x = tokens[m]
                for block in self.resblocks[m]:  # type: ignore[union-attr]
                    extra = F.pad(mask, (0, 1)) if block.attn.bias_k is not None else mask
                    x = block(x, extra[:, None, None, :], context)
                updated.append(x)
            mask = torch.cat([parts[m][number] for m in chosen], dim=-1)
            embeddings.append(self._mean(self.norm(torch.cat(updated, dim=1)), mask))
        return torch.stack(embeddings)

    def _hidden(
        self,
        tokens: Sequence[Tensor],
        subsets: Sequence[Sequence[bool]],
        padding: Sequence[Tensor | None] | None,
    ) -> Bool[Tensor, "subsets batch tokens"]:
        """True for the tokens that a subset must not see."""
        if not tokens:
            raise ValueError("tokens is empty: give the tokens of at least one modality")
        if any(t.ndim != 3 or t.shape[-1] != self.width for t in tokens):
            shapes = [tuple(t.shape) for t in tokens]
            raise ValueError(f"tokens must be (batch, tokens, width={self.width}), got {shapes}")
        padding = [None] * len(tokens) if padding is None else padding
        if len(padding) != len(tokens):
            raise ValueError(
                f"key_padding_mask must hold {len(tokens)} masks, one a modality, "
                f"got {len(padding)}"
            )
        masks = []
        for m, (sequence, mask) in enumerate(zip(tokens, padding, strict=True)):
            batch, length, _ = sequence.shape
            if mask is not None and (mask.shape != (batch, length) or mask.dtype != torch.bool):
                raise ValueError(
                    f"key_padding_mask[{m}] must be bool ({batch}, {length}), "
                    f"got {mask.dtype} {tuple(mask.shape)}"
                )
            absent = torch.tensor([not s[m] for s in subsets], device=sequence.device)
            mask = sequence.new_zeros(batch, length, dtype=torch.bool) if mask is None else mask
            masks.append(mask | absent[:, None, None])
        hidden = torch.cat(masks, dim=-1)
        if self.pool == "mean" and bool(hidden.all(dim=-1).any()):
            raise ValueError("a sample has no token that is not padding: pool='mean' needs one")
        return hidden
