"""Where the projections, norms and embeddings of the supported decoders are."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from torch import nn

from ritornello.methods.rrs.experts import expert_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Kind = Literal["attention_input", "attention_output", "mlp_input", "mlp_output"]


@dataclass(frozen=True)
class Family:
    """Module names, relative to the decoder or to one of its layers.

    Inputs are listed in the order in which GPTQ rounds them; each tuple shares one input.

    Attributes:
        mlps: (inputs, output) of every MLP of a layer: one, or one for each expert.
        routers: what else reads the MLP's norm; it keeps full precision.
    """

    decoder: str
    embeddings: tuple[str, ...]
    final_norm: str
    attention_norm: str
    mlp_norm: str
    attention_inputs: tuple[str, str, str]
    attention_output: str
    mlps: tuple[tuple[tuple[str, ...], str], ...]
    routers: tuple[str, ...] = ()

    @property
    def mlp_inputs(self) -> tuple[str, ...]:
        """What projects into the inner state of the MLP, or of every expert."""
        return tuple(name for inputs, _ in self.mlps for name in inputs)

    @property
    def mlp_outputs(self) -> tuple[str, ...]:
        """What projects out of it."""
        return tuple(output for _, output in self.mlps)

    @property
    def readers(self) -> tuple[str, ...]:
        """All that reads the residual stream."""
        return (*self.attention_inputs, *self.routers, *self.mlp_inputs)

    @property
    def writers(self) -> tuple[str, ...]:
        """All that writes to the residual stream."""
        return (self.attention_output, *self.mlp_outputs)

    @property
    def projections(self) -> dict[str, Kind]:
        """Every quantised linear layer of a decoder layer, in GPTQ's order, and what it reads."""
        return {
            **dict.fromkeys(self.attention_inputs, "attention_input"),
            self.attention_output: "attention_output",
            **dict.fromkeys(self.mlp_inputs, "mlp_input"),
            **dict.fromkeys(self.mlp_outputs, "mlp_output"),
        }

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Projections that share an input, in GPTQ's order."""
        mlps = [names for inputs, output in self.mlps for names in (inputs, (output,))]
        return (self.attention_inputs, (self.attention_output,), *mlps)

    @property
    def value(self) -> str:
        """The value projection."""
        return self.attention_inputs[1]

    @property
    def norms(self) -> dict[str, tuple[str, ...]]:
        """Each norm of a layer and what reads it."""
        after_attention = (*self.routers, *self.mlp_inputs)
        return {self.attention_norm: self.attention_inputs, self.mlp_norm: after_attention}


_LLAMA = Family(
    decoder="model",
    embeddings=("embed_tokens",),
    final_norm="norm",
    attention_norm="input_layernorm",
    mlp_norm="post_attention_layernorm",
    attention_inputs=("self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"),
    attention_output="self_attn.o_proj",
    mlps=((("mlp.up_proj", "mlp.gate_proj"), "mlp.down_proj"),),
)
_OPT = Family(
    decoder="model.decoder",
    embeddings=("embed_tokens", "embed_positions"),
    final_norm="final_layer_norm",
    attention_norm="self_attn_layer_norm",
    mlp_norm="final_layer_norm",
    attention_inputs=("self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"),
    attention_output="self_attn.out_proj",
    mlps=((("fc1",), "fc2"),),
)
_FAMILIES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "opt": _OPT,
    "mixtral": replace(_LLAMA, mlps=(), routers=("mlp.gate",)),
}


def family_of(model: "PreTrainedModel") -> Family:
    """The family of a causal language model.

    Raises:
        ValueError: the architecture is not supported.
    """
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if kind not in _FAMILIES:
        raise ValueError(f"model has the architecture {kind!r}; accepted: {', '.join(_FAMILIES)}")
    if not hasattr(model, "lm_head"):
        raise ValueError(
            f"model is a {type(model).__name__} without lm_head; accepted: the ForCausalLM classes"
        )
    family = _FAMILIES[kind]
    if kind == "mixtral":
        return replace(family, mlps=expert_names(model.config.num_local_experts))
    return family


def decoder_of(model: "PreTrainedModel") -> nn.Module:
    """The module that holds the embeddings, the layers and the final norm."""
    return model.get_submodule(family_of(model).decoder)


def linear_of(parent: nn.Module, name: str) -> nn.Linear:
    """The linear layer of that name.

    Raises:
        ValueError: it is something else (quantised by other means, or adapted).
    """
    linear = parent.get_submodule(name)
    if not isinstance(linear, nn.Linear):
        raise ValueError(f"{name} must be a torch.nn.Linear, got {type(linear).__name__}")
    return linear


def layers_of(model: "PreTrainedModel") -> nn.ModuleList:
    """The decoder layers."""
    layers = decoder_of(model).layers
    assert isinstance(layers, nn.ModuleList)
    return layers


def head_shape(model: "PreTrainedModel") -> tuple[int, int, int]:
    """(query heads, key-value heads, head width)."""
    config = model.config
    heads = config.num_attention_heads
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, key_value_heads, width
