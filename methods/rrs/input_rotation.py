"""The rotation of a layer's input at run time, and the blocks it is made of."""

from jaxtyping import Float
from torch import Tensor

from ritornello.common.kernels.hadamard import hadamard_transform


class InputRotation:
    """A block-diagonal Hadamard rotation of a layer's input, over neighbours or over heads.

    Args:
        block: order of the Hadamard matrix; it divides the number of entries it runs over.
        heads: None to run along all channels; else the channels are (heads, width) and the
            rotation mixes the heads.
    """

    def __init__(self, block: int, heads: int | None = None) -> None:
        self.block, self.heads = block, heads

    def __call__(self, x: Float[Tensor, "*rows channels"]) -> Float[Tensor, "*rows channels"]:
        """The rotated rows."""
        if self.heads is None:
            return block_hadamard(x, self.block)
        by_head = x.unflatten(-1, (self.heads, -1)).transpose(-1, -2)
        return block_hadamard(by_head, self.block).transpose(-1, -2).flatten(-2)

    def is_whole(self, channels: int) -> bool:
        """Whether it is one Hadamard matrix over all channels, which a kernel may take in."""
        return self.heads is None and self.block == channels

    def __repr__(self) -> str:
        return f"InputRotation(block={self.block}, heads={self.heads})"


def block_hadamard(x: Tensor, block: int) -> Tensor:
    """Multiplies each run of `block` channels by the normalised Hadamard matrix."""
    if block == 1:
        return x
    return hadamard_transform(x.unflatten(-1, (-1, block)), block**-0.5).flatten(-2)
