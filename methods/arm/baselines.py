"""What the paper compares with: masked autoencoding on the same encoder, decoder and target.

The other baselines are settings: supervised training is `ARMForImageClassification` from scratch,
single-patch and random-order prediction are `ARMForPretraining(cluster_size=1)` and
`ARMForPretraining(order="random")`.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ritornello.methods.arm.mixer import Directions, scan_orders
from ritornello.methods.arm.pretraining import PatchPredictor, PretrainingOutput, Target


class MAEForPretraining(PatchPredictor):
    """Masked autoencoder with the fine-tuning model's four-direction encoder.

    Masked patches are dropped from the encoder; the visible ones keep the order that each scan
    direction gives them. ARM's decoder, without its mask, predicts the hidden patches from the
    visible ones.

    Args:
        image_size: as the other sizes, `target`, `channels`, `d_state`, `decoder_heads` and `taps`,
            see `PatchPredictor`.
        mask_ratio: share of the patches that are hidden.
        directions: scan directions of the encoder.

    Raises:
        ValueError: sizes that do not divide, a mask that hides all or nothing.
    """

    def __init__(
        self,
        image_size: int = 192, patch_size: int = 16, depth: int = 12, dim: int = 768,
        decoder_dim: int = 512, decoder_depth: int = 4, *,
        mask_ratio: float = 0.75, directions: Directions = "cross", target: Target = "pixels_norm",
        channels: int = 3, d_state: int = 16,
        decoder_heads: int | None = None, taps: Sequence[int] | None = None,
    ):  # fmt: skip
        super().__init__(
            image_size, patch_size, depth, dim, decoder_dim, decoder_depth,
            target=target, directions=directions,
            channels=channels, d_state=d_state, decoder_heads=decoder_heads, taps=taps,
        )  # fmt: skip
        self.directions: Directions = directions
        patches = self.patch_embed.grid[0] * self.patch_embed.grid[1]
        self.visible = round(patches * (1 - mask_ratio))
        if not 0 < self.visible < patches:
            raise ValueError(f"mask_ratio must leave 1..{patches - 1} patches, got {mask_ratio}")

    def forward(
        self,
        images: Float[Tensor, "batch colours height width"],
        generator: torch.Generator | None = None,
    ) -> PretrainingOutput:
        """Loss and predictions of the hidden patches; `generator` draws the masks."""
        tokens = self.patch_embed(images) + self.pos_embed
        ranks = torch.rand(tokens.shape[:2], generator=generator).argsort(1).to(tokens.device)
        shown, hidden = ranks[:, : self.visible].sort(1)[0], ranks[:, self.visible :].sort(1)[0]
        visible = torch.take_along_dim(tokens, shown[..., None], dim=1)
        memory = self.memory(visible, self._visible_orders(shown))
        return self.output(images, self.decode(memory, hidden), hidden)

    def _visible_orders(
        self, shown: Int[Tensor, "batch visible"]
    ) -> Int[Tensor, "batch directions visible"]:
        """Each direction's order of the grid, restricted to the shown patches."""
        orders = scan_orders(self.directions, self.patch_embed.grid, None, shown.device)
        step_of_patch = orders.argsort(1)  # (directions, patches)
        return step_of_patch[:, shown].argsort(-1).transpose(0, 1)
