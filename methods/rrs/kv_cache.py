"""Quantised keys: turned and rounded after the position embedding, inside the attention call."""

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor, nn

from ritornello.methods.rrs.input_rotation import block_hadamard
from ritornello.methods.rrs.quantizers import round_symmetric

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTION_NAME = "ritornello_rotated_keys"


class KeyQuantizer(nn.Module):
    """Turns queries and keys by H_d and rounds the keys (sec. 3.2, item 5).

    Rounding the same key again gives the same key, so a cache may hold the keys as they came.

    Args:
        bits: 2 to 8.
        block: order of the Hadamard matrix along the head; 1 for no rotation.
        per_head: one scale for each head of a token, else one for all its heads.
    """

    def __init__(self, bits: int, block: int, *, per_head: bool) -> None:
        super().__init__()
        self.bits, self.block, self.per_head = bits, block, per_head

    def forward(
        self,
        query: Float[Tensor, "batch heads queries width"],
        key: Float[Tensor, "batch kv_heads tokens width"],
    ) -> tuple[Tensor, Tensor]:
        """(turned query, turned and rounded key), in the dtypes given."""
        query, turned = block_hadamard(query, self.block), block_hadamard(key, self.block)
        if self.per_head:
            levels, scale = round_symmetric(turned.float(), self.bits)
            return query, (levels * scale).to(key.dtype)
        tokens = turned.float().transpose(1, 2)
        levels, scale = round_symmetric(tokens.flatten(2), self.bits)
        rounded = (levels * scale).view_as(tokens).transpose(1, 2)
        return query, rounded.to(key.dtype)


def install_key_quantizers(
    model: "PreTrainedModel", attentions: list[nn.Module], quantizer: KeyQuantizer | None
) -> None:
    """Lets the attention modules quantise their keys, or, with None, stop doing so."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if quantizer is None:
        if model.config._attn_implementation == ATTENTION_NAME:
            model.set_attn_implementation("sdpa")
        return
    AttentionInterface.register(ATTENTION_NAME, _attention)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    for attention in attentions:
        attention.key_quantizer = quantizer
    model.set_attn_implementation(ATTENTION_NAME)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options,
) -> tuple[Tensor, Tensor | None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    quantizer = module.key_quantizer
    assert isinstance(quantizer, KeyQuantizer)
    query, key = quantizer(query, key)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
