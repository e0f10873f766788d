"""The fine-tuning model: four scan directions, a class token in the middle, a linear head."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ritornello.methods.arm.backbone import MambaMLPBlock, PatchEmbedding, drop_path_rates
from ritornello.methods.arm.mixer import Directions, scan_orders
from ritornello.methods.arm.pretraining import stacked_vectors

Pool = Literal["mean", "cls"]


class ARMForImageClassification(nn.Module):
    """Vision Mamba classifier with the interface that timm's training loops expect.

    Args:
        image_size: side of the square images, pixels.
        patch_size: side of a patch, pixels.
        depth: blocks.
        dim: width.
        num_classes: outputs; 0 returns pooled features.
        pool: "mean" (of the means before and after the class token) or "cls".
        directions: scan directions of the mixers; the paper fine-tunes "cross".
        channels: colours of the images.
        d_state: states per channel of the mixers.
        drop_path_rate: stochastic depth of the deepest block (see `drop_path_rates`).

    Raises:
        ValueError: sizes that do not divide, a single patch, unknown `pool` or `directions`.
    """

    def __init__(
        self,
        image_size: int = 224,
        patch_size: int = 16,
        depth: int = 12,
        dim: int = 768,
        num_classes: int = 1000,
        pool: Pool = "mean",
        directions: Directions = "cross",
        *,
        channels: int = 3,
        d_state: int = 16,
        drop_path_rate: float = 0.0,
    ):
        super().__init__()
        if pool not in ("mean", "cls"):
            raise ValueError(f'pool must be "mean" or "cls", got {pool!r}')
        self.patch_embed = PatchEmbedding(image_size, patch_size, channels, dim)
        patches = self.patch_embed.grid[0] * self.patch_embed.grid[1]
        if patches < 2:
            raise ValueError(f"image_size={image_size} leaves one patch of {patch_size}; 2 needed")
        self.cls_index, self.pool = patches // 2, pool
        orders = scan_orders(directions, self.patch_embed.grid, self.cls_index)
        self.register_buffer("orders", orders[None], persistent=False)
        self.num_classes, self.num_features = num_classes, dim
        self.grad_checkpointing = False
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, patches + 1, dim))
        self.blocks = nn.ModuleList(
            MambaMLPBlock(dim, d_state, directions, self.cls_index, rate, depth=depth)
            for rate in drop_path_rates(drop_path_rate, depth)
        )
        self.norm = nn.LayerNorm(dim)
        self.head: nn.Module = nn.Identity()
        self.reset_classifier(num_classes)
        for token in (self.cls_token, self.pos_embed):
            nn.init.trunc_normal_(token, std=0.02)

    def forward_features(
        self, images: Float[Tensor, "batch colours height width"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Normalised tokens, the class token at `cls_index`."""
        x = self.patch_embed(images)
        cls = self.cls_token.to(x.dtype).expand(len(x), -1, -1)
        x = torch.cat([x[:, : self.cls_index], cls, x[:, self.cls_index :]], dim=1)
        x = x + self.pos_embed
        for block in self.blocks:
            if self.grad_checkpointing and self.training:
                x = checkpoint(block, x, orders=self.orders, use_reentrant=False)
            else:
                x = block(x, orders=self.orders)
        return self.norm(x)

    def forward_head(
        self, tokens: Float[Tensor, "batch tokens dim"], pre_logits: bool = False
    ) -> Float[Tensor, "batch outputs"]:
        """Pools the tokens and classifies; `pre_logits=True` stops after pooling."""
        if self.pool == "cls":
            pooled = tokens[:, self.cls_index]
        else:
            before, after = tokens[:, : self.cls_index], tokens[:, self.cls_index + 1 :]
            pooled = (before.mean(1) + after.mean(1)) / 2
        return pooled if pre_logits else self.head(pooled)

    def forward(
        self, images: Float[Tensor, "batch colours height width"]
    ) -> Float[Tensor, "batch outputs"]:
        """Logits, or pooled features when `num_classes` is 0."""
        return self.forward_head(self.forward_features(images))

    def reset_classifier(self, num_classes: int, global_pool: Pool | None = None) -> None:
        """A fresh head, as timm names it; `global_pool` changes the pooling if given."""
        self.num_classes = num_classes
        self.pool = global_pool or self.pool
        if not num_classes:
            self.head = nn.Identity()
            return
        head = nn.Linear(self.num_features, num_classes)
        nn.init.trunc_normal_(head.weight, std=0.02)
        nn.init.zeros_(head.bias)
        self.head = head

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trades time for memory: blocks are recomputed in the backward pass."""
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Names that weight decay leaves alone, beside biases and norms."""
        return {"cls_token", "pos_embed", *stacked_vectors(self)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameter groups by depth, for timm's layer-decay optimisers."""
        return {"stem": r"^cls_token|pos_embed|patch_embed", "blocks": [(r"^blocks\.(\d+)", None)]}
