"""The shared decoder pieces against definitions written out."""

import pytest
import torch

from ritornello.common.models.transformer import (
    CausalAttention,
    SwiGLU,
    apply_rotary,
    rotary_angles,
)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_rotary_scores_depend_on_the_distance_only():
    query, key = torch.randn(2, 1, 1, 1, 8, generator=generator(), dtype=torch.float64)
    scores = []
    for start in (0, 7):
        cos, sin = rotary_angles(torch.tensor([start, start + 3]), 8, dtype=torch.float64)
        rotated_query = apply_rotary(query, cos[1:], sin[1:])
        rotated_key = apply_rotary(key, cos[:1], sin[:1])
        scores.append((rotated_query * rotated_key).sum())
    torch.testing.assert_close(scores[0], scores[1])


def test_rotary_keeps_lengths_and_position_zero():
    x = torch.randn(1, 2, 4, 6, generator=generator())
    cos, sin = rotary_angles(torch.arange(4), 6)
    rotated = apply_rotary(x, cos, sin)
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotated[:, :, 0], x[:, :, 0])


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_equals_the_loop_over_heads(kv_heads):
    torch.manual_seed(0)
    attention = CausalAttention(16, 4, kv_heads=kv_heads, theta=None)
    x = torch.randn(2, 5, 16)
    query, key, value = attention.query(x), attention.key(x), attention.value(x)
    heads = []
    for head in range(4):
        group = head * kv_heads // 4
        q = query[..., head * 4 : head * 4 + 4]
        k, v = (t[..., group * 4 : group * 4 + 4] for t in (key, value))
        scores = q @ k.transpose(1, 2) / 2
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
        heads.append(scores.softmax(-1) @ v)
    torch.testing.assert_close(attention(x), attention.output(torch.cat(heads, -1)))


def test_attention_ignores_the_future():
    torch.manual_seed(0)
    attention = CausalAttention(8, 2)
    x = torch.randn(1, 6, 8)
    changed = x.clone()
    changed[:, 4:] += 1
    torch.testing.assert_close(attention(x)[:, :4], attention(changed)[:, :4])


def test_swiglu_is_the_gated_product():
    torch.manual_seed(0)
    block = SwiGLU(4, 6)
    x = torch.randn(3, 4)
    gate, up = x @ block.gate.weight.T, x @ block.up.weight.T
    torch.testing.assert_close(block(x), (gate * gate.sigmoid() * up) @ block.down.weight.T)


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match="width must be a multiple of heads=3"):
        CausalAttention(8, 3)
    with pytest.raises(ValueError, match="kv_heads=3"):
        CausalAttention(8, 4, kv_heads=3)
    with pytest.raises(ValueError, match="head_dim must be even"):
        rotary_angles(torch.arange(2), 3)
