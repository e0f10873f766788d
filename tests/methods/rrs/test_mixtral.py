"""Mixtral: experts become layers of their own, each smoothed over the tokens it was sent."""

import copy

import pytest
import torch

from ritornello.methods.rrs import (
    RRSConfig,
    from_pretrained,
    quantize_model,
    requantize_activations,
    rotate_model,
    runtime_smooth_scale,
    save_pretrained,
    smooth_quant,
)
from ritornello.methods.rrs.baselines import collect_absmax
from ritornello.methods.rrs.experts import separate_experts
from ritornello.methods.rrs.quantize import quant_linears

EXPERTS = 4


@pytest.fixture(scope="module")
def original():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=EXPERTS,
        num_experts_per_tok=2, max_position_embeddings=64, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = MixtralForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data += 0.3 * torch.randn(parameter.shape)
        if "gate.weight" in name:  # routing that no rounding error turns over
            parameter.data *= 20
    return model


@pytest.fixture(scope="module")
def ids():
    return torch.randint(2, 97, (3, 20), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits(model, ids):
    return model(ids).logits


def test_separated_experts_compute_the_same(original, ids):
    model = copy.deepcopy(original)
    separate_experts(model)
    separate_experts(model)  # the second time there is nothing left to do
    torch.testing.assert_close(logits(model, ids), logits(original, ids))


def test_rotating_leaves_the_logits_and_the_routing(original, ids):
    expected = logits(original, ids)
    model = rotate_model(copy.deepcopy(original))
    torch.testing.assert_close(logits(model, ids), expected, rtol=1e-3, atol=1e-5)
    config = RRSConfig(w_bits=16, a_bits=16, smooth="none")
    model = quantize_model(copy.deepcopy(original), config)
    torch.testing.assert_close(logits(model, ids), expected, rtol=1e-3, atol=1e-5)


def test_smoothquant_leaves_the_function(original, ids):
    model = copy.deepcopy(original)
    smooth_quant(model, collect_absmax(model, ids), through_linears=True)
    torch.testing.assert_close(logits(model, ids), logits(original, ids), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        RRSConfig(group_size=32, k_bits=4, v_bits=4),
        RRSConfig(group_size=32, execution="integer"),
        RRSConfig(rotate=False, smooth="static", weight_method="rtn"),
        RRSConfig(w_bits=16, a_bits=4),
    ],
)
def test_quantise_save_load_gives_the_same_logits(original, ids, tmp_path, config):
    exact = logits(original, ids)
    model = quantize_model(copy.deepcopy(original), config, ids)
    assert len(quant_linears(model)) == 2 * (4 + 3 * EXPERTS)
    y = logits(model, ids)
    assert 0 < (y - exact).norm() < 0.7 * exact.norm()
    save_pretrained(model, tmp_path)
    torch.testing.assert_close(logits(from_pretrained(tmp_path), ids), y, rtol=0, atol=0)


def test_integer_execution_gives_the_logits_of_the_simulation(original, ids):
    model = quantize_model(copy.deepcopy(original), RRSConfig(group_size=32), ids)
    simulated = logits(model, ids)
    requantize_activations(model, RRSConfig(group_size=32, execution="integer"))
    torch.testing.assert_close(logits(model, ids), simulated, rtol=1e-3, atol=1e-4)


def test_an_expert_smooths_over_the_tokens_it_was_sent(original, ids):
    """Also where all tokens were sent to it: they are one sequence, whatever the batch."""
    config = RRSConfig(w_bits=16, rotate=False, group_size=1)
    model = quantize_model(copy.deepcopy(original), config)
    linear = model.model.layers[0].mlp.experts[0].up_proj
    linear.context.shape = (3, 20)
    x = torch.randn(60, 64, generator=torch.Generator().manual_seed(0))
    scale = runtime_smooth_scale(x, 1)
    step = (x / scale).abs().amax(1, keepdim=True) / 7
    expected = (x / scale / step).round().clamp(-8, 7) * step * scale @ linear.weight.T
    torch.testing.assert_close(linear(x), expected, rtol=1e-4, atol=1e-4)


def test_an_expert_without_calibration_tokens_is_rounded_to_nearest(original):
    one_token = torch.full((1, 1), 5)
    model = quantize_model(copy.deepcopy(original), RRSConfig(), one_token)
    for layer in model.model.layers:
        for expert in layer.mlp.experts:
            assert expert.up_proj.integers().any(1).all()


@pytest.mark.parametrize("decode", ["online", "reuse"])
def test_generation_after_a_prefill(original, ids, decode):
    config = RRSConfig(w_bits=16, a_bits=8, decode=decode)
    model = quantize_model(copy.deepcopy(original), config)
    prompt = ids[:2, :12]
    given = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 3, "do_sample": False}
    out = model.generate(prompt, **given, output_logits=True, return_dict_in_generate=True)
    exact = logits(original, out.sequences)[:, 11:-1]
    assert (torch.stack(out.logits, 1) - exact).norm() < 0.1 * exact.norm()
