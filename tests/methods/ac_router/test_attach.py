"""Attachment to transformers' MoE models: reversible, exact with unit weights, safe to generate."""

import pytest
import torch
from torch import nn

from ritornello.methods.ac_router import attach_ac_router
from ritornello.methods.ac_router.weights import adaptive_weights, token_weights

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def build(kind: str) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    if kind == "mixtral":
        config = transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
    elif kind == "olmoe":
        config = transformers.OlmoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2)
    else:
        config = transformers.Qwen2MoeConfig(
            **SIZES,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
        )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("gate.weight"):
            nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("kind", ["mixtral", "olmoe", "qwen2_moe"])
@torch.no_grad()
def test_attached_gates_see_scaled_tokens_and_detaching_restores_the_model(kind):
    model = build(kind)
    tokens = torch.randint(40, (2, 12))
    before = model(tokens).logits
    gate = model.model.layers[1].mlp.gate
    seen = []
    with attach_ac_router(model) as attached:
        handle = gate.register_forward_hook(lambda m, args, out: seen.append((args[0], out)))
        during = model(tokens).logits
        handle.remove()
        assert len(attached.layers) == 2
        previous = attached.states[0]
    assert not torch.allclose(before, during)
    torch.testing.assert_close(model(tokens).logits, before, rtol=0, atol=0)
    # The hook saw the scaled tokens: undoing the weights must give the same weights again.
    scaled, _ = seen[0]
    inputs = []
    handle = gate.register_forward_pre_hook(lambda m, args: inputs.append(args[0]))
    model(tokens)
    handle.remove()
    plain = inputs[0].reshape(-1, 16)  # layer 0 is ordinary: layer 1's input is the same
    weights = token_weights(adaptive_weights(plain, previous.indices, 4), previous.indices)
    torch.testing.assert_close(scaled, plain * weights, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_unit_weights_leave_the_model_exactly_as_it_is():
    """A running router that has seen nothing has unit weights."""
    model = build("mixtral")
    tokens = torch.randint(40, (2, 12))
    before = model(tokens).logits
    with attach_ac_router(model, statistics="running"):
        torch.testing.assert_close(model(tokens).logits, before, rtol=0, atol=0)


@torch.no_grad()
def test_generation_with_calibrated_statistics_routes_a_prefix_the_same_whatever_follows():
    model = build("mixtral")
    tokens = torch.randint(40, (1, 12))
    other = tokens.clone()
    other[:, 8:] = (tokens[:, 8:] + 5) % 40
    with attach_ac_router(model, statistics="running") as attached:
        attached.calibrate(lambda: model(torch.randint(40, (4, 32))))
        whole = model(tokens).logits
        torch.testing.assert_close(model(other).logits[:, :8], whole[:, :8])
        cache = model(tokens[:, :8], use_cache=True).past_key_values
        for position in range(8, 12):  # one token at a time, as generate does
            step = model(tokens[:, position : position + 1], past_key_values=cache)
            torch.testing.assert_close(step.logits[:, 0], whole[:, position], rtol=1e-4, atol=1e-4)
        assert model.generate(tokens, max_new_tokens=3, do_sample=False).shape == (1, 15)


@torch.no_grad()
def test_padding_is_kept_out_of_the_statistics():
    model = build("mixtral")
    tokens = torch.randint(1, 40, (2, 10))
    padded = torch.cat([tokens, torch.zeros(2, 6, dtype=torch.long)], dim=1)
    mask = torch.ones_like(padded)
    mask[:, 10:] = 0
    with attach_ac_router(model):
        plain = model(input_ids=tokens).logits
        masked = model(input_ids=padded, attention_mask=mask).logits[:, :10]
    torch.testing.assert_close(masked, plain, rtol=1e-4, atol=1e-4)


def test_attached_models_train():
    model = build("mixtral").train()
    with attach_ac_router(model):
        tokens = torch.randint(40, (2, 12))
        model(tokens, labels=tokens).loss.backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "gate" in n)


def test_a_gate_outside_its_models_forward_is_refused():
    model = build("mixtral")
    with attach_ac_router(model), pytest.raises(RuntimeError, match="outside its model's forward"):
        model.model.layers[1].mlp.gate(torch.randn(3, 16))


def test_models_and_layers_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="at least 2 gates"):
        attach_ac_router(nn.Linear(2, 2))
    model = build("mixtral")
    for layers in ([0], [3], []):
        with pytest.raises(ValueError, match="layers must name MoE layers"):
            attach_ac_router(model, layers=layers)
    with pytest.raises(ValueError, match="skip_first"):
        attach_ac_router(model, skip_first=0)
    with attach_ac_router(model) as attached, pytest.raises(ValueError, match="calibrate needs"):
        attached.calibrate(lambda: None)
