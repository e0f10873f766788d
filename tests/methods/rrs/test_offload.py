"""Layers that wait in memory: the same model, with one layer at a time on the device."""

import copy

import pytest
import torch

from ritornello.common.models import tiny_causal_lm
from ritornello.methods.rrs import (
    RRSConfig,
    from_pretrained,
    offload_layers,
    quantize_model,
    save_pretrained,
)
from ritornello.methods.rrs.families import layers_of

IDS = torch.randint(2, 90, (2, 16), generator=torch.Generator().manual_seed(0))
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
CONFIGS = {
    "rrs": RRSConfig(w_bits=4, decode="reuse"),
    "integer": RRSConfig(w_bits=4, execution="integer"),
    "smooth_quant": RRSConfig(w_bits=4, weight_method="rtn", rotate=False, smooth="static"),
    "full_precision": RRSConfig(w_bits=16, a_bits=16),
}


def home_pointers(layer):
    return [tensor.data_ptr() for tensor in layer.parameters()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", ["llama", "opt"])
def test_an_offloaded_model_is_the_same_model(kind, name, device, tmp_path):
    config = CONFIGS[name]
    plain = tiny_causal_lm(kind, layers=3)
    away = offload_layers(copy.deepcopy(plain), device)
    plain = quantize_model(plain.to(device), config, IDS)
    away = quantize_model(away, config, IDS)
    ids = IDS.to(device)
    with torch.no_grad():
        expected = plain(ids).logits
        torch.testing.assert_close(away(ids).logits, expected, rtol=1e-4, atol=1e-4)
    options = {"max_new_tokens": 5, "do_sample": False}
    assert torch.equal(away.generate(ids, **options), plain.generate(ids, **options))
    assert {t.device.type for t in layers_of(away).parameters()} <= {"cpu"}
    save_pretrained(away, tmp_path)
    loaded = offload_layers(from_pretrained(tmp_path), device)
    with torch.inference_mode():
        torch.testing.assert_close(loaded(ids).logits, expected, rtol=1e-4, atol=1e-4)


def test_one_layer_is_away_at_a_time_and_comes_back_unchanged():
    model = offload_layers(tiny_causal_lm("llama", layers=3), "cpu")
    homes = [home_pointers(layer) for layer in layers_of(model)]
    seen = []

    def look(*_):
        seen.append([home_pointers(a) == b for a, b in zip(layers_of(model), homes, strict=True)])

    for layer in layers_of(model):
        layer.self_attn.register_forward_hook(look)
    with torch.no_grad():
        model(IDS)
    assert seen == [[False, True, True], [True, False, True], [True, True, False]]
    assert [home_pointers(layer) for layer in layers_of(model)] == homes


def test_a_failing_forward_sends_the_layer_back():
    model = offload_layers(tiny_causal_lm("llama"), "cpu")
    layer = layers_of(model)[0]
    home = home_pointers(layer)
    layer.mlp.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(IDS)
    assert home_pointers(layer) == home


def test_layers_elsewhere_are_refused():
    with torch.device("meta"):
        model = tiny_causal_lm("llama")
    with pytest.raises(ValueError, match="meta"):
        offload_layers(model, "cpu")
