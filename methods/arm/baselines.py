"""What the paper compares with: masked autoencoding on the same encoder, decoder and target.

The other baselines are settings: supervised training is `ARMForImageClassification` from scratch,
single-patch and random-order prediction are `ARMForPretraining(cluster_size=1)` and
`ARMForPretraining(order="random")`.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ritornello.methods.arm.mixer import Directions, scan_orders
from ritornello.methods.arm.pretraining import PatchPredictor, PretrainingOutput


class MAEForPretraining(PatchPredictor):
    """Masked autoencoder with the fine-tuning model's four-direction encoder.

    Masked patches are dropped from the encoder; the visible ones keep the order that each scan
    direction gives them. ARM's decoder, without its mask, predicts the hidden patches from the
    visible ones.

    Args:
        *sizes: `image_size` .. `decoder_depth` of `PatchPredictor`.
        mask_ratio: share of the patches that are hidden.
        directions: scan directions of the encoder.
        **options: the other arguments of `PatchPredictor`, its sizes too.

    Raises:
        ValueError: sizes that do not divide, a mask that hides all or nothing.
    """

    def __init__(
        self,
        *sizes: int,
        mask_ratio: float = 0.75,
        directions: Directions = "cross",
        **options: Any,
    ):
        super().__init__(*sizes, directions=directions, **options)
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
