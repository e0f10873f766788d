"""The equations as slow, obvious steps: the oracle of the fast paths, and the benchmarks' peer."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ritornello.methods.comm.fusion import FusionTransformer


def nt_xent_matrix(z1: Tensor, z2: Tensor, temperature: float = 0.1) -> Float[Tensor, ""]:
    """NCE with the 2N × 2N matrix written out: [[ab, aa], [bb, ba]] / τ, own pairs out."""
    a, b = F.normalize(z1, dim=-1), F.normalize(z2, dim=-1)
    out = 1e8 * torch.eye(len(a), device=a.device)
    ab, aa, bb = a @ b.T / temperature, a @ a.T / temperature - out, b @ b.T / temperature - out
    matrix = torch.cat([torch.cat([ab, aa], dim=1), torch.cat([bb, ab.T], dim=1)])
    return -matrix.log_softmax(dim=1).diagonal().mean()


def comm_loss(
    views1: Sequence[Tensor], views2: Sequence[Tensor], temperature: float = 0.1
) -> Float[Tensor, ""]:
    """Mean over k of ½ [NCE(z'_k, z''_all) + NCE(z''_k, z'_all)]."""
    terms = []
    for a, b in zip(views1, views2, strict=True):
        first = nt_xent_matrix(a, views2[-1], temperature)
        second = nt_xent_matrix(b, views1[-1], temperature)
        terms.append((first + second) / 2)
    return torch.stack(terms).mean()


def fuse_one_subset(
    fusion: FusionTransformer,
    tokens: Sequence[Float[Tensor, "batch _ width"]],
    padding: Sequence[Tensor] | None = None,
) -> Float[Tensor, "batch width"]:
    """A fusion pass over the given tokens alone, every block for every token.

    For `fusion="concat"`, through torch's own attention.
    """
    x = torch.cat(list(tokens), dim=1)
    hidden = None if padding is None else torch.cat(list(padding), dim=1)
    if fusion.cls_token is not None:
        x = torch.cat([fusion.cls_token.expand(len(x), -1, -1), x], dim=1)
        hidden = None if hidden is None else F.pad(hidden, (1, 0))
    block: Any
    for block in fusion.resblocks:
        attention, normed = block.attn, block.ln_1(x).transpose(0, 1)
        attended, _ = F.multi_head_attention_forward(
            normed,
            normed,
            normed,
            fusion.width,
            attention.heads,
            attention.in_proj_weight,
            attention.in_proj_bias,
            attention.bias_k,
            attention.bias_v,
            add_zero_attn=False,
            dropout_p=0.0,
            out_proj_weight=attention.out_proj.weight,
            out_proj_bias=attention.out_proj.bias,
            key_padding_mask=hidden,
            need_weights=False,
        )
        x = x + attended.transpose(0, 1)
        x = x + block.mlp(block.ln_2(x))
    x = fusion.norm(x)
    if fusion.pool == "cls":
        return x[:, 0]
    there = torch.ones_like(x[..., :1]) if hidden is None else (~hidden).to(x.dtype).unsqueeze(-1)
    return (x * there).sum(dim=1) / there.sum(dim=1)
