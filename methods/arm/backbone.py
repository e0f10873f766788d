"""The pieces that pretraining and fine-tuning share: patch embedding and the MambaMLP block."""

import math

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ritornello.methods.arm.mixer import Directions, MambaMixer


class PatchEmbedding(nn.Module):
    """Linear embedding of square patches, LeCun-normal at the start.

    Raises:
        ValueError: the image side is no multiple of the patch side; images of another size.
    """

    def __init__(self, image_size: int, patch_size: int, channels: int, dim: int):
        super().__init__()
        if image_size % patch_size:
            raise ValueError(f"patch_size must divide image_size={image_size}, got {patch_size}")
        self.image_size = image_size
        self.grid = (image_size // patch_size, image_size // patch_size)
        self.proj = nn.Conv2d(channels, dim, patch_size, stride=patch_size)
        nn.init.normal_(self.proj.weight, std=self.proj.weight[0].numel() ** -0.5)
        assert self.proj.bias is not None
        nn.init.zeros_(self.proj.bias)

    def forward(
        self, images: Float[Tensor, "batch colours height width"]
    ) -> Float[Tensor, "batch patches dim"]:
        """Embeds the patches in raster order."""
        expected = (self.proj.in_channels, self.image_size, self.image_size)
        if images.shape[1:] != expected:
            raise ValueError(f"images must be (batch, {expected}), got {tuple(images.shape)}")
        return self.proj(images).flatten(2).mT


class SwiGLU(nn.Module):
    """W3(silu(W1 x) * W2 x) with floor(8 dim / 3) hidden units, or `hidden` if given."""

    def __init__(self, dim: int, hidden: int | None = None):
        super().__init__()
        hidden = hidden or dim * 4 * 2 // 3
        self.w1, self.w2, self.w3 = _linear(dim, hidden), _linear(dim, hidden), _linear(hidden, dim)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Applies the gated perceptron to every token."""
        return self.w3(F.silu(self.w1(x)) * self.w2(x))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.bias)
    return layer


def drop_path(x: Tensor, rate: float, training: bool) -> Tensor:
    """Drops a residual branch for whole images at random, keeping its expectation."""
    if not training or rate == 0:
        return x
    kept = x.new_empty(len(x), *[1] * (x.ndim - 1)).bernoulli_(1 - rate)
    return x * kept / (1 - rate)


class MambaMLPBlock(nn.Module):
    """x + Mixer(LN(x)), then x + SwiGLU(LN(x)) (sec. 3.1).

    Args:
        dim: width of the tokens.
        d_state: states per channel of the mixer.
        directions: scan directions of the mixer.
        cls_index: index of the class token, for the mixer.
        drop_path_rate: probability of dropping a branch in training.
        depth: number of blocks in the model, for the initialisation.
    """

    def __init__(
        self,
        dim: int,
        d_state: int = 16,
        directions: Directions = "causal",
        cls_index: int | None = None,
        drop_path_rate: float = 0.0,
        *,
        depth: int = 1,
    ):
        super().__init__()
        self.drop_path_rate = drop_path_rate
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mixer = MambaMixer(
            dim, d_state, directions=directions, cls_index=cls_index, depth=depth
        )
        self.mlp = SwiGLU(dim)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        grid: tuple[int, int] | None = None,
        orders: Int[Tensor, "batch directions tokens"] | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """One block; `grid` and `orders` as in `MambaMixer.forward`."""
        rate, training = self.drop_path_rate, self.training
        x = x + drop_path(self.mixer(self.norm1(x), grid, orders), rate, training)
        return x + drop_path(self.mlp(self.norm2(x)), rate, training)


def drop_path_rates(rate: float, depth: int) -> list[float]:
    """Rate of every block: 0, 0, then linear; the last block stays one step below `rate`."""
    return [rate * max(0, block - 1) / max(1, depth - 1) for block in range(depth)]


def tap_layers(depth: int) -> tuple[int, ...]:
    """Blocks (counted from 1) whose outputs the decoder reads: 6, 8, 10, 12 of 12; 12, 16, 20, 24
    of 24; else up to four, evenly spaced, the last included."""
    if depth in (12, 24):
        return tuple(depth // 2 + depth // 6 * k for k in range(4))
    count = min(4, depth)
    return tuple(math.ceil(depth * (k + 1) / count) for k in range(count))
