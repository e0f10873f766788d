"""What the paper compares with: masked autoencoding on the same encoder.

The other baselines are settings: supervised training is `ARMForImageClassification` from scratch,
single-patch and random-order prediction are `ARMForPretraining(cluster_size=1)` and
`ARMForPretraining(order="random")`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ritornello.methods.arm.backbone import MambaMLPBlock, PatchEmbedding
from ritornello.methods.arm.mixer import Directions, scan_orders
from ritornello.methods.arm.patches import normalize_patches, patchify, sincos_positions
from ritornello.methods.arm.pretraining import PretrainingOutput, Target, stacked_vectors


class MAEForPretraining(nn.Module):
    """Masked autoencoder with the fine-tuning model's four-direction encoder.

    Masked patches are dropped from the encoder; the visible ones keep the order that each scan
    direction gives them. A light decoder of the same blocks fills in the rest.

    Args:
        mask_ratio: share of the patches that are hidden.
        directions: scan directions of encoder and decoder.
        others: as in `ARMForPretraining`.

    Raises:
        ValueError: sizes that do not divide, a mask that hides all or nothing.
    """

    def __init__(
        self,
        image_size: int = 192,
        patch_size: int = 16,
        depth: int = 12,
        dim: int = 768,
        decoder_dim: int = 512,
        decoder_depth: int = 4,
        mask_ratio: float = 0.75,
        target: Target = "pixels_norm",
        directions: Directions = "cross",
        *,
        channels: int = 3,
        d_state: int = 16,
    ):
        super().__init__()
        self.patch_size, self.target, self.directions = patch_size, target, directions
        self.patch_embed = PatchEmbedding(image_size, patch_size, channels, dim)
        grid = self.patch_embed.grid
        patches = grid[0] * grid[1]
        self.visible = round(patches * (1 - mask_ratio))
        if not 0 < self.visible < patches:
            raise ValueError(f"mask_ratio must leave 1..{patches - 1} patches, got {mask_ratio}")
        self.register_buffer("pos_embed", sincos_positions(grid, dim)[None])
        self.register_buffer("decoder_pos", sincos_positions(grid, decoder_dim)[None], False)
        self.blocks = nn.ModuleList(
            MambaMLPBlock(dim, d_state, directions, depth=depth) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        self.encoder_to_decoder = nn.Linear(dim, decoder_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder_dim))
        self.decoder = nn.ModuleList(
            MambaMLPBlock(decoder_dim, d_state, directions, depth=decoder_depth)
            for _ in range(decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(decoder_dim)
        self.pixel_head = nn.Linear(decoder_dim, channels * patch_size**2)
        nn.init.trunc_normal_(self.mask_token, std=0.02)

    def forward(
        self,
        images: Float[Tensor, "batch colours height width"],
        generator: torch.Generator | None = None,
    ) -> PretrainingOutput:
        """Loss and predictions of the hidden patches; `generator` draws the masks."""
        tokens = self.patch_embed(images) + self.pos_embed
        ranks = torch.rand(tokens.shape[:2], generator=generator).argsort(1).to(tokens.device)
        shown, hidden = ranks[:, : self.visible].sort(1)[0], ranks[:, self.visible :].sort(1)[0]
        x = torch.take_along_dim(tokens, shown[..., None], dim=1)
        orders = self._visible_orders(shown, tokens.shape[1])
        for block in self.blocks:
            x = block(x, orders=orders)
        x = self.encoder_to_decoder(self.norm(x))
        filled = self.mask_token.to(x.dtype).expand(len(x), tokens.shape[1], -1)
        filled = filled.scatter(1, shown[..., None].expand_as(x), x) + self.decoder_pos
        for block in self.decoder:
            filled = block(filled, self.patch_embed.grid)
        filled = torch.take_along_dim(filled, hidden[..., None], dim=1)
        pred = self.pixel_head(self.decoder_norm(filled))
        patches = patchify(images, self.patch_size)
        targets = normalize_patches(patches) if self.target == "pixels_norm" else patches
        targets = torch.take_along_dim(targets, hidden[..., None], dim=1)
        token_loss = (pred.to(targets.dtype) - targets).square().mean(-1)
        return PretrainingOutput(token_loss.mean(), pred, token_loss, hidden)

    def _visible_orders(
        self, shown: Int[Tensor, "batch visible"], patches: int
    ) -> Int[Tensor, "batch directions visible"]:
        """Each direction's order of the grid, restricted to the shown patches."""
        orders = scan_orders(self.directions, self.patch_embed.grid, None, shown.device)
        step_of_patch = orders.argsort(1)  # (directions, patches)
        return step_of_patch[:, shown].argsort(-1).transpose(0, 1)

    def no_weight_decay(self) -> set[str]:
        """Names that weight decay leaves alone, beside biases and norms."""
        return {"mask_token", *stacked_vectors(self)}
