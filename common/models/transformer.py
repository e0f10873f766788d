"""Pieces of a Llama-like decoder: rotary positions, causal attention, SwiGLU.

Shape legend: B batch, T tokens, H heads, K key/value heads, D head size, C width, F hidden width.
The norm of such a decoder is torch's own `nn.RMSNorm(width, eps=1e-5)`.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def rotary_angles(
    positions: Tensor, head_dim: int, *, theta: float = 10_000.0, dtype: torch.dtype = torch.float32
) -> tuple[Float[Tensor, "*tokens dim"], Float[Tensor, "*tokens dim"]]:
    """Cosines and sines of the rotary embedding, first half of the head paired with the second.

    Args:
        positions: integer positions, any shape.
        head_dim: even size of a head.
        theta: base of the geometric series of wavelengths.
        dtype: of the result; the angles themselves are computed in fp32, or fp64 for fp64.

    Raises:
        ValueError: if `head_dim` is odd.
    """
    if head_dim % 2:
        raise ValueError(f"head_dim must be even for rotary positions, got {head_dim}")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=wide) / head_dim
    angles = positions.to(wide).unsqueeze(-1) * theta**-exponents
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rotary(
    x: Float[Tensor, "batch heads tokens dim"],
    cos: Float[Tensor, "*#tokens dim"],
    sin: Float[Tensor, "*#tokens dim"],
) -> Float[Tensor, "batch heads tokens dim"]:
    """Rotates queries or keys by their positions; `cos`, `sin` come from `rotary_angles`."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def split_heads(x: Float[Tensor, "batch tokens width"], heads: int) -> Tensor:
    """(B, T, H * D) to (B, H, T, D)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Float[Tensor, "batch heads tokens dim"]) -> Tensor:
    """(B, H, T, D) to (B, T, H * D)."""
    return x.transpose(1, 2).flatten(-2)


class CausalAttention(nn.Module):
    """Multi-head causal self-attention with rotary positions and, if asked, grouped keys.

    Args:
        width: C, of the residual stream.
        heads: H; `width` must be a multiple of it.
        kv_heads: K, the number of key/value heads; `heads` (the default) must be a multiple of it.
        theta: base of the rotary embedding, or None for no positions.
    """

    def __init__(
        self, width: int, heads: int, *, kv_heads: int | None = None, theta: float | None = 10_000.0
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if width % heads:
            raise ValueError(f"width must be a multiple of heads={heads}, got {width}")
        if heads % kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads={kv_heads}, got {heads}")
        self.heads, self.kv_heads, self.theta = heads, kv_heads, theta
        self.head_dim = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(
        self, x: Float[Tensor, "batch tokens width"]
    ) -> Float[Tensor, "batch tokens width"]:
        """Attends from every token to itself and those before it."""
        query = split_heads(self.query(x), self.heads)
        key = split_heads(self.key(x), self.kv_heads)
        value = split_heads(self.value(x), self.kv_heads)
        if self.theta is not None:
            positions = torch.arange(x.shape[1], device=x.device)
            cos, sin = rotary_angles(positions, self.head_dim, theta=self.theta, dtype=query.dtype)
            query, key = apply_rotary(query, cos, sin), apply_rotary(key, cos, sin)
        attended = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.kv_heads != self.heads
        )
        return self.output(merge_heads(attended))


class SwiGLU(nn.Module):
    """Gated feed-forward network: down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Applies the network to every token."""
        return self.down(F.silu(self.gate(x)) * self.up(x))
