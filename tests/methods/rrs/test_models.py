"""Whole models of every supported kind, tiny and random."""

import copy

import pytest
import torch

from ritornello.common.models.tiny import tiny_causal_lm
from ritornello.methods.rrs import (
    QuantLinear,
    RRSConfig,
    from_pretrained,
    fuse_rms_norms,
    quantize_model,
    requantize_activations,
    rotate_model,
    save_pretrained,
    smooth_quant,
)
from ritornello.methods.rrs.baselines import collect_absmax
from ritornello.methods.rrs.quantize import quant_linears

ARCHITECTURES = ["llama", "mistral", "qwen2", "opt"]
pytestmark = pytest.mark.filterwarnings("ignore:the embeddings were tied")


@pytest.fixture(scope="module")
def original():
    """Models with gains and biases that are not the initial ones and zeros."""
    made = {}
    for name in ARCHITECTURES:
        model = made[name] = tiny_causal_lm(name, tie_embeddings=name in ("llama", "opt"))
        generator = torch.Generator().manual_seed(1)
        for key, parameter in model.named_parameters():
            if "norm" in key or "bias" in key:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.data += 0.3 * noise
    return made


@pytest.fixture(scope="module")
def ids():
    return torch.randint(2, 250, (3, 20), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits(model, ids, **given):
    return model(ids, **given).logits


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["hadamard", "random"])
def test_fusing_and_rotating_leaves_the_logits(original, ids, architecture, dtype, mode):
    model = copy.deepcopy(original[architecture]).to(dtype)
    expected = logits(model, ids)
    embeddings = model.get_input_embeddings().weight.detach().clone()
    fuse_rms_norms(model)
    torch.testing.assert_close(logits(model, ids), expected, **_tolerance(dtype))
    rotate_model(model, seed=3, mode=mode)
    torch.testing.assert_close(logits(model, ids), expected, **_tolerance(dtype))
    assert not torch.allclose(model.get_input_embeddings().weight, embeddings, atol=1e-3)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2"])
def test_rotation_alone_fuses_and_unties_what_it_must(original, ids, architecture, tied):
    """Norm gains do not commute with Q, and a tied matrix would be turned twice."""
    model = copy.deepcopy(original[architecture])
    if tied:
        model.lm_head.weight = model.get_input_embeddings().weight
    expected = logits(model, ids)
    rotate_model(model)
    torch.testing.assert_close(logits(model, ids), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "opt"])
def test_rotations_are_exact_in_double_precision(original, ids, architecture):
    """The norms of transformers compute in float32; with norms that do not, 1e-9 is reached."""
    model = copy.deepcopy(original[architecture]).double()
    fuse_rms_norms(model)
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm") and not isinstance(module, torch.nn.RMSNorm):
            eps, width = module.variance_epsilon, len(module.weight)
            plain = torch.nn.RMSNorm(width, eps=eps, elementwise_affine=False)
            model.set_submodule(name, plain)
    expected = logits(model, ids)
    quantize_model(model, RRSConfig(w_bits=16, a_bits=16, smooth="none"))
    torch.testing.assert_close(logits(model, ids), expected, rtol=1e-9, atol=1e-9)


def _tolerance(dtype):
    # Llama's norm computes in float32 whatever it is given.
    return {"rtol": 1e-3, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-6, "atol": 1e-6}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_rotations_together_leave_the_logits(original, ids, architecture):
    config = RRSConfig(w_bits=16, a_bits=16, smooth="none")
    expected = logits(original[architecture], ids)
    model = quantize_model(copy.deepcopy(original[architecture]), config)
    torch.testing.assert_close(logits(model, ids), expected, rtol=1e-3, atol=1e-5)


def test_widths_without_a_hadamard_matrix(ids):
    """9 heads stay unmixed; an MLP of 92 and a stream of 72 wants random or block-diagonal ones."""
    model = tiny_causal_lm(width=72, hidden=92, heads=9, key_value_heads=3)
    expected = logits(model, ids)
    config = RRSConfig(w_bits=16, a_bits=16, smooth="none")
    with pytest.raises(ValueError, match=r"MLP width.*n=92.*rotate_mode='random'"):
        quantize_model(copy.deepcopy(model), config)
    config = RRSConfig(w_bits=16, a_bits=16, smooth="none", rotate_mode="random")
    torch.testing.assert_close(
        logits(quantize_model(model, config), ids), expected, rtol=1e-3, atol=1e-5
    )


def test_untying_is_announced():
    model = tiny_causal_lm(tie_embeddings=True)
    with pytest.warns(UserWarning, match="untied"):
        fuse_rms_norms(model)
    assert model.lm_head.weight is not model.get_input_embeddings().weight


CONFIGS = {
    "rrs": RRSConfig(group_size=32),
    "rrs_kv4": RRSConfig(group_size=32, k_bits=4, v_bits=4),
    "rrs_8_bit": RRSConfig(w_bits=8, a_bits=8, k_bits=8, v_bits=8, k_group="token"),
    "token_normalised": RRSConfig(scale_stat="token_normalised", targets="all", decode="reuse"),
    "rtn": RRSConfig(rotate=False, smooth="none", weight_method="rtn"),
    "gptq_groups": RRSConfig(rotate=False, smooth="none", w_group_size=16),
    "smoothquant": RRSConfig(rotate=False, smooth="static", weight_method="rtn"),
    "integer": RRSConfig(group_size=32, execution="integer"),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", CONFIGS)
def test_quantise_save_load_gives_the_same_logits(original, ids, tmp_path, architecture, name):
    config = CONFIGS[name]
    exact = logits(original[architecture], ids)
    model = quantize_model(copy.deepcopy(original[architecture]), config, ids)
    y = logits(model, ids)
    error = ((y - exact).norm() / exact.norm()).item()
    assert 0 < error < (0.02 if config.a_bits == 8 else 0.3)
    save_pretrained(model, tmp_path)
    loaded = from_pretrained(tmp_path)
    torch.testing.assert_close(logits(loaded, ids), y, rtol=0, atol=0)
    packed = [m for m in quant_linears(loaded) if m.weight_bits == 4]
    assert all(m.weight_packed.shape == (m.out_features, m.in_features // 2) for m in packed)


def test_integer_execution_gives_the_logits_of_the_simulation(original, ids):
    model = quantize_model(copy.deepcopy(original["qwen2"]), RRSConfig(group_size=32), ids)
    simulated = logits(model, ids)
    requantize_activations(model, RRSConfig(group_size=32, execution="integer"))
    torch.testing.assert_close(logits(model, ids), simulated, rtol=1e-3, atol=1e-4)


def test_official_targets_leave_queries_keys_and_values_unsmoothed(original):
    model = copy.deepcopy(original["llama"])
    model = quantize_model(model, RRSConfig(w_bits=16))
    stats = {
        name: m.quantizer.stat for name, m in model.named_modules() if isinstance(m, QuantLinear)
    }
    for name, stat in stats.items():
        unsmoothed = name.endswith(("q_proj", "k_proj", "v_proj"))
        assert stat == (None if unsmoothed else "absmax"), name
    requantize_activations(model, RRSConfig(w_bits=16, targets="all"))
    assert all(m.quantizer.stat == "absmax" for m in quant_linears(model))


@pytest.mark.parametrize("architecture", ["llama", "opt"])
def test_left_padding_leaves_the_logits_of_the_real_tokens(original, ids, architecture):
    """In OPT the MLP sees flattened tokens; its scales must still be per sequence and unpadded."""
    model = quantize_model(
        copy.deepcopy(original[architecture]), RRSConfig(group_size=32, w_bits=16, targets="all")
    )
    expected = logits(model, ids[:1])
    padded = torch.cat([torch.full((1, 4), 99), ids[:1]], 1)
    batch = torch.cat([padded, torch.cat([ids[1:2], ids[2:3, :4]], 1)])
    mask = torch.ones_like(batch)
    mask[0, :4] = 0
    given = {"attention_mask": mask}
    if architecture == "llama":
        given["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    y = logits(model, batch, **given)
    torch.testing.assert_close(y[:1, 4:], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("decode", ["online", "reuse"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_generation_after_a_prefill(original, ids, architecture, decode):
    """At 8 bits decoding with a cache continues as the full forward does."""
    config = RRSConfig(w_bits=16, a_bits=8, k_bits=8, v_bits=8, decode=decode)
    model = quantize_model(copy.deepcopy(original[architecture]), config)
    prompt = ids[:2, :12]
    given = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 3, "do_sample": False}
    out = model.generate(prompt, **given, output_logits=True, return_dict_in_generate=True)
    exact = logits(original[architecture], out.sequences)[:, 11:-1]
    steps = torch.stack(out.logits, 1)
    assert (steps - exact).norm() < 0.05 * exact.norm()


def test_smoothquant_leaves_the_function(original, ids):
    for architecture in ("llama", "opt"):
        model = copy.deepcopy(original[architecture])
        expected = logits(model, ids)
        gain = model.get_submodule(_first_norm(architecture)).weight.clone()
        smooth_quant(model, collect_absmax(model, ids), alpha=0.7, through_linears=True)
        torch.testing.assert_close(logits(model, ids), expected, rtol=1e-3, atol=1e-5)
        assert not torch.allclose(model.get_submodule(_first_norm(architecture)).weight, gain)


def _first_norm(architecture):
    return {
        "llama": "model.layers.0.input_layernorm",
        "opt": "model.decoder.layers.0.self_attn_layer_norm",
    }[architecture]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w_bits": 0}, "w_bits must be in 2..8 or 16"),
        ({"a_bits": 4.5}, "a_bits must be in 2..8 or 16"),
        ({"a_bits": 9}, "a_bits"),
        ({"k_bits": 1}, "k_bits"),
        ({"group_size": 0}, "group_size"),
        ({"w_group_size": 0}, "w_group_size"),
        ({"a_clip_ratio": 0.0}, "a_clip_ratio"),
        ({"static_alpha": 1.5}, "static_alpha"),
        ({"smooth": "dynamic"}, "smooth must be one of 'none', 'runtime', 'static'"),
        ({"targets": "qkv"}, "targets"),
        ({"execution": "integer", "group_size": 1}, "group_size=1"),
        ({"execution": "integer", "w_bits": 16}, "w_bits=16"),
        ({"execution": "integer", "w_group_size": 32}, "w_group_size=32"),
    ],
)
def test_config_names_the_bad_value(change, message):
    with pytest.raises(ValueError, match=message):
        RRSConfig(**change)


def test_bad_models_and_texts_are_named(original, ids, tmp_path):
    llama = original["llama"]
    with pytest.raises(ValueError, match="calibration_ids are needed"):
        quantize_model(copy.deepcopy(llama), RRSConfig())
    with pytest.raises(ValueError, match="calibration_ids must be integers"):
        quantize_model(copy.deepcopy(llama), RRSConfig(), ids[0])
    with pytest.raises(ValueError, match="architecture 'Linear'"):
        quantize_model(torch.nn.Linear(2, 2), RRSConfig(), ids)
    with pytest.raises(ValueError, match="without lm_head"):
        quantize_model(copy.deepcopy(llama).model, RRSConfig(), ids)
    with pytest.raises(ValueError, match="w_group_size must divide the 64 inputs"):
        quantize_model(copy.deepcopy(llama), RRSConfig(w_group_size=48), ids)
    with pytest.raises(ValueError, match="call quantize_model first"):
        save_pretrained(llama, tmp_path)
    model = quantize_model(copy.deepcopy(llama), RRSConfig(w_bits=16))
    with pytest.raises(ValueError, match="quantised already"):
        quantize_model(model, RRSConfig(w_bits=16))
    with pytest.raises(ValueError, match="w_bits=4 wants other weights"):
        requantize_activations(model, RRSConfig())


def test_damaged_checkpoints_are_named(original, ids, tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        from_pretrained(tmp_path)
    save_pretrained(quantize_model(copy.deepcopy(original["llama"]), RRSConfig(), ids), tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged or truncated"):
        from_pretrained(tmp_path)
    weights.unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_named(bad):
    from ritornello.methods.rrs import quantize_per_token, rrs_linear, runtime_smooth_scale

    x = torch.ones(2, 8)
    x[1, 3] = bad
    weight = torch.zeros(4, 8, dtype=torch.int8)
    for call in (
        lambda: quantize_per_token(x),
        lambda: runtime_smooth_scale(x),
        lambda: rrs_linear(x, weight, torch.ones(4)),
    ):
        with pytest.raises(ValueError, match="x must be finite"):
            call()
