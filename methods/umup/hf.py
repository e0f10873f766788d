"""A Llama for transformers under u-muP, and its export to a plain Llama (sec. 4.1, app. H)."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedModel as HFModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from ritornello.methods.umup.functional.activations import attention_scale
from ritornello.methods.umup.model import DecoderLayer, DecoderLM, positions_to_rotary
from ritornello.methods.umup.modules import Embedding, Linear
from ritornello.methods.umup.parametrization import DecoderConfig, UMuP
from ritornello.methods.umup.scale import log_interpolate


def _sizes(config: LlamaConfig) -> DecoderConfig:
    """Our sizes for a LlamaConfig.

    Raises:
        ValueError: naming the option of the config that has no unit-scaled form here.
    """
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {"rope_type": "default"}
    head_dim = config.hidden_size // config.num_attention_heads
    wanted: dict[str, tuple[Any, Any, str]] = {
        "tie_word_embeddings": (config.tie_word_embeddings, False, "the two need different rates"),
        "attention_bias": (config.attention_bias, False, "u-muP has no biases"),
        "mlp_bias": (config.mlp_bias, False, "u-muP has no biases"),
        "hidden_act": (config.hidden_act, "silu", "the gate is unit-scaled for silu"),
        "head_dim": (config.head_dim, head_dim, "heads share the width"),
        "attention_dropout": (config.attention_dropout, 0.0, "u-muP trains without dropout"),
        "rope_type": (rope.get("rope_type", "default"), "default", "positions are not rescaled"),
    }  # fmt: skip
    for name, (value, accepted, reason) in wanted.items():
        if value != accepted:
            raise ValueError(f"config.{name} must be {accepted!r} ({reason}), got {value!r}")
    return DecoderConfig(
        vocab_size=config.vocab_size,
        width=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        hidden=config.intermediate_size,
        kv_heads=config.num_key_value_heads,
        rope_theta=rope.get("rope_theta", 10_000.0),
        norm_eps=config.rms_norm_eps,
        attention_tokens=config.max_position_embeddings,
    )


class UmupLlamaForCausalLM(HFModel, GenerationMixin):
    """u-muP Llama with transformers' forward, generate, save and load.

    The attention multiplier depends on the length. Here it is fixed at
    `config.max_position_embeddings`, so that generation with and without a cache, and prompts of
    any length, see one and the same model.

    Args:
        config: a LlamaConfig without biases and with untied embeddings.
        parametrization: the five multipliers; all 1 by default.
    """

    config: LlamaConfig
    config_class = LlamaConfig
    base_model_prefix = "decoder"
    _supports_sdpa = True
    # The unit-scaled loss is not to be divided again by the number of items of a batch.
    accepts_loss_kwargs = False

    def __init__(self, config: LlamaConfig, parametrization: UMuP | None = None) -> None:
        super().__init__(config)
        self.decoder = DecoderLM(_sizes(config), parametrization)
        self.post_init()

    @property
    def _scheme(self) -> UMuP:
        scheme = self.decoder.parametrization
        assert isinstance(scheme, UMuP)
        return scheme

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Linear | Embedding):
            nn.init.normal_(module.weight)

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding, as transformers asks for it."""
        return self.decoder.embedding

    def get_output_embeddings(self) -> nn.Module:
        """The readout, as transformers asks for it."""
        return self.decoder.readout

    def forward(
        self,
        input_ids: Int[Tensor, "batch tokens"],
        attention_mask: Int[Tensor, "batch keys"] | None = None,
        position_ids: Int[Tensor, "batch tokens"] | None = None,
        cache: DynamicCache | None = None,
        labels: Int[Tensor, "batch tokens"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """As LlamaForCausalLM: labels are shifted here, -100 is left out.

        Logits include the multiplier of the loss's softmax, so that sampling uses the
        distribution that was trained.
        """
        decoder, scheme = self.decoder, self._scheme
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and cache is None:
            cache = DynamicCache()
        past = cache.get_seq_length() if cache is not None else 0
        x = decoder.embedding(input_ids)
        positions = torch.arange(past, past + input_ids.shape[1], device=x.device)
        if position_ids is None:
            position_ids = positions[None]
        cos, sin = positions_to_rotary(position_ids, decoder.config, x)
        rotary = cos.unsqueeze(1), sin.unsqueeze(1)
        mask = _attention_mask(positions, attention_mask)
        for index, layer in enumerate(decoder.layers):
            store = None if cache is None else partial(cache.update, layer_idx=index)
            x = layer(x, index, rotary, mask, store)
        x = scheme.norm(x, decoder.config.norm_eps)
        logits = decoder.readout(x[:, -logits_to_keep:] if logits_to_keep else x)
        loss = None
        if labels is not None:
            loss = scheme.loss(logits[:, :-1], labels[:, 1:].to(logits.device))
        if scheme.loss_softmax != 1:
            logits = logits * scheme.loss_softmax
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=cache)


def _attention_mask(
    positions: Int[Tensor, " tokens"], padding: Int[Tensor, "batch keys"] | None
) -> Bool[Tensor, "batch 1 tokens keys"] | None:
    """True where a token may look; None for the plain triangle."""
    starts_at_zero = len(positions) == 0 or int(positions[0]) == 0
    if starts_at_zero and (padding is None or bool(padding.all())):
        return None
    keys = torch.arange(int(positions[-1]) + 1, device=positions.device)
    visible = (keys <= positions[:, None])[None, None]
    if padding is not None:
        visible = visible & padding[:, None, None, : len(keys)].bool()
        # A padded token sees itself: an empty row would be nan.
        visible = visible | (keys == positions[:, None])
    return visible


@torch.no_grad()
def export_llama(model: UmupLlamaForCausalLM, tokens: int | None = None) -> LlamaForCausalLM:
    """A plain LlamaForCausalLM with the same logits: every multiplier is folded into a weight.

    The residual stream of the plain model is the unit-scaled one times the product of the earlier
    (1 + tau^2)^1/2, which RMS norms take out again; only their eps acts at another scale.

    Args:
        model: the model to export.
        tokens: length whose attention multiplier is folded; the model's own by default.
    """
    config, scheme = model.decoder.config, model._scheme
    tokens = model.config.max_position_embeddings if tokens is None else tokens
    assert tokens is not None  # a LlamaConfig has a length unless it is taken out
    embedding = model.decoder.embedding
    assert isinstance(embedding, Embedding)
    plain = LlamaForCausalLM(model.config)
    # transformers' decorator of `to` hides `self` from type checkers.
    plain.to(device=embedding.weight.device, dtype=embedding.weight.dtype)  # type: ignore[reportCallIssue]
    plain.model.embed_tokens.weight.copy_(embedding.weight)
    plain.lm_head.weight.copy_(model.decoder.readout.weight * (scheme.loss_softmax / config.width))
    head_dim, mult = config.head_dim, scheme.attention_softmax
    attended = attention_scale(tokens, head_dim, mult=mult, is_causal=True)
    gate_mult = scheme.ffn_activation
    glu = log_interpolate(1 / (1 + 1 / gate_mult**2), 2, 2**0.5) / gate_mult
    stream, branches, inner = 1.0, 2 * config.layers, config.width**-0.5
    for index, (ours, theirs) in enumerate(
        zip(model.decoder.layers, plain.model.layers, strict=True)
    ):
        assert isinstance(ours, DecoderLayer)
        assert isinstance(theirs, LlamaDecoderLayer)
        attention_tau = scheme.tau(2 * index, branches)
        feed_tau = scheme.tau(2 * index + 1, branches)
        attention, feed = ours.attention, ours.feed_forward
        theirs.self_attn.q_proj.weight.copy_(attention.query.weight * inner * mult * head_dim**-0.5)
        theirs.self_attn.k_proj.weight.copy_(attention.key.weight * inner)
        theirs.self_attn.v_proj.weight.copy_(attention.value.weight * inner)
        theirs.self_attn.o_proj.weight.copy_(
            attention.output.weight * (inner * attended * stream * attention_tau)
        )
        stream *= (1 + attention_tau**2) ** 0.5
        theirs.mlp.gate_proj.weight.copy_(feed.gate.weight * inner * gate_mult)
        theirs.mlp.up_proj.weight.copy_(feed.up.weight * inner)
        theirs.mlp.down_proj.weight.copy_(
            feed.down.weight * (config.ffn_width**-0.5 * glu * stream * feed_tau)
        )
        stream *= (1 + feed_tau**2) ** 0.5
    return plain.eval()
