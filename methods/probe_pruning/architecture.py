"""The parts of a decoder layer that pruning touches, for each supported family."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ritornello.methods.probe_pruning.flops import LayerShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GATED = ("llama", "mistral", "qwen2")
SUPPORTED = (*GATED, "opt")
_ATTENTION = ("sdpa", "eager")

Rotary = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LayerParts:
    """One decoder layer, taken apart.

    Attributes:
        attention_norm, mlp_norm: before the block; after it where `norm_first` is false.
        query, key, value, output: projections of the attention block.
        front: (gate, up) or (fc1,): the MLP's matrices before its inner state.
        down: the MLP's last matrix.
        activation: of the first matrix in `front`.
        heads, key_value_heads, head_dim: H, K, d.
    """

    attention_norm: nn.Module
    mlp_norm: nn.Module
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    front: tuple[nn.Linear, ...]
    down: nn.Linear
    activation: Callable[[Tensor], Tensor]
    heads: int
    key_value_heads: int
    head_dim: int
    norm_first: bool

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key-value head."""
        return self.key_value_heads != self.heads

    @property
    def shape(self) -> LayerShape:
        """Sizes, for counting FLOPs."""
        return LayerShape(
            dim=self.query.in_features,
            query_dim=self.heads * self.head_dim,
            key_value_dim=self.key_value_heads * self.head_dim,
            hidden=self.down.in_features,
            gated=len(self.front) == 2,
        )

    def mlp_state(self, front: list[Tensor]) -> Tensor:
        """u = act(gate) * up, or act(fc1)."""
        if isinstance(self.activation, nn.SiLU):
            state = nn.functional.silu(front[0], inplace=True)
        else:
            state = self.activation(front[0])
        return state if len(front) == 1 else state.mul_(front[1])


def take_apart(model: "PreTrainedModel") -> list[LayerParts]:
    """The parts of every decoder layer.

    Raises:
        ValueError: the architecture or its attention implementation is not supported, a projection
            is not a plain linear layer, or the heads do not fit their projection.
    """
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", type(model).__name__)
    if kind not in SUPPORTED or model.get_output_embeddings() is None:
        raise ValueError(
            f"model must be a causal language model of {', '.join(SUPPORTED)}, "
            f"got {type(model).__name__} ({kind})"
        )
    if config._attn_implementation not in _ATTENTION:
        raise ValueError(
            f"attn_implementation must be one of {', '.join(_ATTENTION)}, "
            f"got {config._attn_implementation!r}"
        )
    layers: Any = model.get_decoder().layers
    parts = [_opt(layer) if kind == "opt" else _gated(layer) for layer in layers]
    for number, part in enumerate(parts):
        _check(part, number)
    return parts


def _gated(layer: Any) -> LayerParts:
    attention, mlp = layer.self_attn, layer.mlp
    config = attention.config
    return LayerParts(
        attention_norm=layer.input_layernorm,
        mlp_norm=layer.post_attention_layernorm,
        query=attention.q_proj,
        key=attention.k_proj,
        value=attention.v_proj,
        output=attention.o_proj,
        front=(mlp.gate_proj, mlp.up_proj),
        down=mlp.down_proj,
        activation=mlp.act_fn,
        heads=config.num_attention_heads,
        key_value_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        norm_first=True,
    )


def _opt(layer: Any) -> LayerParts:
    attention = layer.self_attn
    return LayerParts(
        attention_norm=layer.self_attn_layer_norm,
        mlp_norm=layer.final_layer_norm,
        query=attention.q_proj,
        key=attention.k_proj,
        value=attention.v_proj,
        output=attention.out_proj,
        front=(layer.fc1,),
        down=layer.fc2,
        activation=layer.activation_fn,
        heads=attention.num_heads,
        key_value_heads=attention.num_heads,
        head_dim=attention.head_dim,
        norm_first=layer.do_layer_norm_before,
    )


def _check(part: LayerParts, number: int) -> None:
    for linear in (part.query, part.key, part.value, part.output, *part.front, part.down):
        if type(linear) is not nn.Linear or not linear.weight.is_floating_point():
            raise ValueError(
                f"model must have plain linear layers, got {type(linear).__name__} "
                f"in layer {number}: merge adapters and dequantise first"
            )
    expected = part.heads * part.head_dim
    if part.query.out_features != expected or part.heads % part.key_value_heads:
        raise ValueError(
            f"layer {number}: {part.heads} heads of {part.head_dim} and {part.key_value_heads} "
            f"key-value heads do not fit a query projection of {part.query.out_features}"
        )


def normalise(norm: nn.Module, x: Tensor) -> Tensor:
    """norm(x); an RMS norm in fp32 by torch's fused kernel, in a quarter of the time."""
    epsilon, weight = getattr(norm, "variance_epsilon", None), getattr(norm, "weight", None)
    watched = norm._forward_hooks or norm._forward_pre_hooks
    if watched or epsilon is None or weight is None or not x.dtype == weight.dtype == torch.float32:
        return norm(x)
    return nn.functional.rms_norm(x, weight.shape, weight, epsilon)


def rotate(states: Tensor, rotary: Rotary | None) -> Tensor:
    """Rotary position embedding of (batch, heads, tokens, d); OPT has none."""
    if rotary is None:
        return states
    cos, sin = rotary[0].unsqueeze(1), rotary[1].unsqueeze(1)
    half = states.shape[-1] // 2
    turned = torch.cat((-states[..., half:], states[..., :half]), dim=-1)
    return (states * cos).addcmul_(turned, sin)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled softmax attention, causal without a mask: (batch, heads, tokens, d) to u."""
    batch, heads, tokens, head_dim = query.shape
    if heads == 0:
        return query.new_empty(batch, tokens, 0)
    if mask is None:
        # A cache of fixed size is longer than what it holds so far.
        key, value = (t[:, :, :tokens] if tokens > 1 else t for t in (key, value))
    elif mask.is_floating_point():
        mask = mask.to(query.dtype)
    states = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None and tokens > 1
    )
    return states.transpose(1, 2).reshape(batch, tokens, heads * head_dim)
