"""Autoregressive pretraining: every cluster of patches is predicted from those before it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ritornello.methods.arm.backbone import MambaMLPBlock, PatchEmbedding, tap_layers
from ritornello.methods.arm.mixer import Directions
from ritornello.methods.arm.patches import (
    Order,
    cluster_mask,
    cluster_order,
    normalize_patches,
    patchify,
    sincos_positions,
)

Target = Literal["pixels_norm", "pixels"]


@dataclass(frozen=True)
class PretrainingOutput:
    """What a pretraining model returns.

    Attributes:
        loss: scalar, mean squared error over all predicted values.
        pred: predicted patches, (batch, predicted tokens, values of a patch).
        token_loss: mean squared error of each predicted patch, (batch, predicted tokens).
        patches: raster index of each predicted patch, (predicted tokens,) or (batch, ...).
    """

    loss: Tensor
    pred: Tensor
    token_loss: Tensor
    patches: Tensor


class CrossAttentionBlock(nn.Module):
    """Decoder block: queries attend to the encoder's memory, then an MLP. No self-attention."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query_norm, self.memory_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp_norm = nn.LayerNorm(dim)
        self.q, self.kv, self.proj = (
            nn.Linear(dim, dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(dim, dim),
        )
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(
        self,
        queries: Float[Tensor, "batch queries dim"],
        memory: Float[Tensor, "batch memory dim"],
        mask: Bool[Tensor, "queries memory"] | None,
    ) -> Float[Tensor, "batch queries dim"]:
        """`mask` is True where a query may look; None lets it look everywhere."""
        normed = self.memory_norm(memory)
        key, value = self.kv(normed).unflatten(-1, (2, self.heads, -1)).unbind(2)
        query = self.q(self.query_norm(queries)).unflatten(-1, (self.heads, -1))
        heads_first = (x.transpose(1, 2) for x in (query, key, value))
        attended = F.scaled_dot_product_attention(*heads_first, attn_mask=mask)
        queries = queries + self.proj(attended.transpose(1, 2).flatten(2))
        return queries + self.fc2(F.gelu(self.fc1(self.mlp_norm(queries))))


class PatchPredictor(nn.Module):
    """Encoder, decoder and loss of pretraining, whatever is hidden and predicted.

    The encoder's blocks are tapped at several depths; each decoder block reads its own projection
    of all taps.

    Args:
        image_size: side of the square images, pixels.
        patch_size: side of a patch, pixels.
        depth: encoder blocks.
        dim: encoder width.
        decoder_dim: decoder width.
        decoder_depth: decoder blocks.
        target: "pixels_norm" (each patch normalised, the paper's best) or "pixels".
        directions: scan directions of the encoder.
        channels: colours of the images.
        d_state: states per channel of the mixer.
        decoder_heads: attention heads; decoder_dim // 64 (at least 1) if None.
        taps: blocks (from 1) whose outputs the decoder reads; see `tap_layers`.

    Raises:
        ValueError: sizes that do not divide, unknown `target` or `directions`, taps out of range.
    """

    pos_embed: Tensor
    decoder_pos: Tensor

    def __init__(
        self,
        image_size: int = 192,
        patch_size: int = 16,
        depth: int = 12,
        dim: int = 768,
        decoder_dim: int = 512,
        decoder_depth: int = 4,
        *,
        target: Target = "pixels_norm",
        directions: Directions = "causal",
        channels: int = 3,
        d_state: int = 16,
        decoder_heads: int | None = None,
        taps: Sequence[int] | None = None,
    ):
        super().__init__()
        self.patch_size, self.target = patch_size, target
        self.taps = tuple(taps) if taps is not None else tap_layers(depth)
        heads = decoder_heads or max(1, decoder_dim // 64)
        _check(self.taps, depth, decoder_dim, heads, target)
        self.patch_embed = PatchEmbedding(image_size, patch_size, channels, dim)
        grid = self.patch_embed.grid
        self.register_buffer("pos_embed", sincos_positions(grid, dim)[None])
        self.register_buffer("decoder_pos", sincos_positions(grid, decoder_dim)[None], False)
        self.blocks = nn.ModuleList(
            MambaMLPBlock(dim, d_state, directions, depth=depth) for _ in range(depth)
        )
        self.tap_norms = nn.ModuleList(nn.LayerNorm(dim) for _ in self.taps)
        self.encoder_to_decoder = nn.Linear(len(self.taps) * dim, decoder_depth * decoder_dim)
        self.query_token = nn.Parameter(torch.zeros(1, 1, decoder_dim))
        self.decoder = nn.ModuleList(
            CrossAttentionBlock(decoder_dim, heads) for _ in range(decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(decoder_dim)
        self.pixel_head = nn.Linear(decoder_dim, channels * patch_size**2)
        nn.init.trunc_normal_(self.query_token, std=0.02)
        for module in (self.encoder_to_decoder, self.decoder, self.pixel_head):
            module.apply(_init_decoder)

    def memory(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        orders: Int[Tensor, "batch directions tokens"] | None = None,
    ) -> Float[Tensor, "batch tokens dim blocks"]:
        """Runs the encoder; what each decoder block may attend to.

        The decoder block is the fastest axis of the projection (layout of the published weights).
        """
        collected = []
        for index, block in enumerate(self.blocks, start=1):
            tokens = block(tokens, orders=orders)
            if index in self.taps:
                collected.append(tokens)
        normed = [norm(x) for norm, x in zip(self.tap_norms, collected, strict=True)]
        projected = self.encoder_to_decoder(torch.cat(normed, dim=-1))
        return projected.unflatten(-1, (-1, len(self.decoder)))

    def decode(
        self,
        memory: Float[Tensor, "batch tokens dim blocks"],
        predicted: Int[Tensor, "*batch queries"],
        mask: Bool[Tensor, "queries tokens"] | None = None,
    ) -> Float[Tensor, "batch queries values"]:
        """Predicted patches at the raster indices `predicted`."""
        queries = (self.query_token + self.decoder_pos[0, predicted]).expand(len(memory), -1, -1)
        for index, block in enumerate(self.decoder):
            queries = block(queries, memory[..., index], mask)
        return self.pixel_head(self.decoder_norm(queries))

    def targets(
        self, images: Float[Tensor, "batch colours height width"]
    ) -> Float[Tensor, "batch patches values"]:
        """What is predicted for every patch, in raster order."""
        patches = patchify(images, self.patch_size)
        return normalize_patches(patches) if self.target == "pixels_norm" else patches

    def output(
        self,
        images: Float[Tensor, "batch colours height width"],
        pred: Float[Tensor, "batch queries values"],
        predicted: Int[Tensor, "*batch queries"],
    ) -> PretrainingOutput:
        """Compares predictions with the targets at their places."""
        places = predicted.expand(len(images), -1)[..., None]
        targets = torch.take_along_dim(self.targets(images), places, dim=1)
        token_loss = (pred.to(targets.dtype) - targets).square().mean(-1)
        return PretrainingOutput(token_loss.mean(), pred, token_loss, predicted)

    def no_weight_decay(self) -> set[str]:
        """Names that weight decay leaves alone, beside biases and norms (for timm's optimisers)."""
        return {"query_token", *stacked_vectors(self)}


class ARMForPretraining(PatchPredictor):
    """Causal Mamba encoder and cross-attention decoder of ARM's pretraining (sec. 3.3).

    Args:
        image_size: as the other sizes and `target`, see `PatchPredictor`.
        cluster_size: patches per side of a cluster, the unit of prediction (4: 64 x 64 pixels).
        order: in which clusters are predicted; "random" draws an order at every call.
        channels: as `d_state`, `decoder_heads` and `taps`, see `PatchPredictor`.

    Raises:
        ValueError: sizes that do not divide, fewer than two clusters, unknown `order` or `target`.
    """

    fixed_order: Tensor
    mask: Tensor

    def __init__(
        self,
        image_size: int = 192, patch_size: int = 16, depth: int = 12, dim: int = 768,
        decoder_dim: int = 512, decoder_depth: int = 4,
        cluster_size: int = 4, order: Order = "row", target: Target = "pixels_norm", *,
        channels: int = 3, d_state: int = 16,
        decoder_heads: int | None = None, taps: Sequence[int] | None = None,
    ):  # fmt: skip
        super().__init__(
            image_size, patch_size, depth, dim, decoder_dim, decoder_depth,
            target=target, directions="causal",
            channels=channels, d_state=d_state, decoder_heads=decoder_heads, taps=taps,
        )  # fmt: skip
        self.cluster_size, self.order = cluster_size, order
        clusters = cluster_order(self.patch_embed.grid, cluster_size, order)
        self.register_buffer("fixed_order", clusters, persistent=False)
        self.register_buffer("mask", cluster_mask(len(clusters) - 1, clusters.shape[1]), False)

    def forward(
        self,
        images: Float[Tensor, "batch colours height width"],
        generator: torch.Generator | None = None,
    ) -> PretrainingOutput:
        """Loss and predictions of all clusters but the first, from all but the last.

        Args:
            images: a batch.
            generator: draws the order when `order="random"`.
        """
        order = self.fixed_order
        if self.order == "random":
            grid = self.patch_embed.grid
            order = cluster_order(grid, self.cluster_size, "random", generator).to(order.device)
        tokens = self.patch_embed(images) + self.pos_embed
        memory = self.memory(tokens[:, order[:-1].flatten()])
        predicted = order[1:].flatten()
        return self.output(images, self.decode(memory, predicted, self.mask), predicted)


def stacked_vectors(model: nn.Module) -> set[str]:
    """Vectors of the mixers (biases, D) that are matrices only because directions are stacked."""
    vectors = ("mixer.conv_bias", "mixer.dt_bias", "mixer.D")
    return {name for name, _ in model.named_parameters() if name.endswith(vectors)}


def _check(taps: tuple[int, ...], depth: int, dim: int, heads: int, target: str) -> None:
    if target not in ("pixels_norm", "pixels"):
        raise ValueError(f'target must be "pixels_norm" or "pixels", got {target!r}')
    if dim % heads:
        raise ValueError(f"decoder_dim={dim} must be a multiple of decoder_heads={heads}")
    if not taps or list(taps) != sorted({*taps}) or taps[0] < 1 or taps[-1] > depth:
        raise ValueError(f"taps must be increasing blocks in 1..{depth}, got {taps}")


def _init_decoder(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
