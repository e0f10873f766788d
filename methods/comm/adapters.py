"""Adapters: what an encoder yields, as tokens of one width (section 3.2)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def position_table_1d(length: int, width: int) -> Float[Tensor, "1 length width"]:
    """Sines in the even channels and cosines in the odd ones.

    Raises:
        ValueError: an odd width.
    """
    if width % 2:
        raise ValueError(f"width must be even for sines and cosines, got {width}")
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(length).unsqueeze(1) * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(1, length, width)


def position_table_2d(height: int, width: int, dim: int) -> Float[Tensor, "1 dim height width"]:
    """Sines and cosines of the row in the first half of the channels, of the column in the second.

    On a map that is not square the table is the official one: row and column of the transposed map,
    read in order.

    Raises:
        ValueError: `dim` is not a multiple of 4.
    """
    if dim % 4:
        raise ValueError(f"dim must be a multiple of 4 for a 2-D position table, got {dim}")
    rates = 10_000.0 ** -(torch.arange(dim // 4, dtype=torch.float32) / (dim // 4))
    place = torch.arange(height * width)
    slow = (place // height).float().unsqueeze(1) * rates
    fast = (place % height).float().unsqueeze(1) * rates
    table = torch.cat([slow.sin(), slow.cos(), fast.sin(), fast.cos()], dim=1)
    return table.T.reshape(1, dim, height, width)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


class PatchedInputAdapter(nn.Module):
    """Patches of a picture or feature map, projected, with fixed 2-D positions.

    Args:
        num_channels: channels of the map.
        dim_tokens: width of the tokens.
        image_size: the map's size for which the table is made; it is resized to other maps.
        patch_size: side of a patch.
        learnable: trains the position table.
    """

    def __init__(
        self,
        num_channels: int,
        dim_tokens: int,
        image_size: int | tuple[int, int],
        *,
        patch_size: int = 1,
        learnable: bool = False,
    ) -> None:
        super().__init__()
        rows, columns = (side // patch_size for side in _pair(image_size))
        table = position_table_2d(rows, columns, dim_tokens)
        self.pos_emb = nn.Parameter(table, requires_grad=learnable)
        self.proj = nn.Conv2d(num_channels, dim_tokens, patch_size, stride=patch_size)

    def forward(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Tokens in the order of reading.

        Raises:
            ValueError: not a map of these channels, or sides that patches do not divide.
        """
        patch, channels = self.proj.kernel_size[0], self.proj.in_channels
        if x.ndim != 4 or x.shape[1] != channels or x.shape[2] % patch or x.shape[3] % patch:
            raise ValueError(
                f"x must be (batch, {channels}, height, width) with sides that are multiples of "
                f"{patch}, got {tuple(x.shape)}"
            )
        patches = self.proj(x)
        table = self.pos_emb
        if table.shape[2:] != patches.shape[2:]:
            table = F.interpolate(table, size=patches.shape[2:], mode="bicubic")
        return (patches + table).flatten(2).transpose(1, 2)


class FeaturesInputAdapter(nn.Module):
    """One token a feature of a table: token_j = x_j · w_j + b_j."""

    def __init__(self, n_features: int, dim_tokens: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_features, dim_tokens))
        self.bias = nn.Parameter(torch.randn(n_features, dim_tokens))

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features dim"]:
        """Raises ValueError for another number of features."""
        if x.ndim != 2 or x.shape[1] != len(self.weight):
            raise ValueError(f"x must be (batch, {len(self.weight)}), got {tuple(x.shape)}")
        return x.unsqueeze(-1) * self.weight + self.bias


class SimpleFeaturesInputAdapter(nn.Module):
    """The whole vector as one token, or as `tokens` equal pieces."""

    def __init__(self, tokens: int = 1) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch tokens dim"]:
        """Raises ValueError for what is not a batch of vectors that divide."""
        if x.ndim != 2 or x.shape[1] % self.tokens:
            raise ValueError(
                f"x must be (batch, features) with features a multiple of {self.tokens}, "
                f"got {tuple(x.shape)}"
            )
        return x.unflatten(1, (self.tokens, -1))
