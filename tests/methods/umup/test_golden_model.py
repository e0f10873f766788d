"""The whole model, the learning-rate rules and FP8 rounding against the authors' library."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from ritornello.methods.umup import AdamW, DecoderConfig, DecoderLM, Parameter, param_groups
from ritornello.methods.umup.fp8 import E4M3, E5M2, FPFormat, round_e4m3fn, round_e5m2
from ritornello.methods.umup.optim import lr_scale

GOLDEN = Path(__file__).parents[2] / "golden" / "umup"
MODEL = np.load(GOLDEN / "model.npz")
RULES = json.loads((GOLDEN / "rules.json").read_text())
PARTS = {
    "mlp.linear_1": "feed_forward.up",
    "mlp.linear_gate": "feed_forward.gate",
    "mlp.linear_2": "feed_forward.down",
    "mhsa.linear_o": "attention.output",
    "projection": "readout",
}


def golden(salt: str, key: str) -> np.ndarray:
    return MODEL[f"{salt}_{key}"]


def our_names(name: str) -> list[str]:
    """Our parameter(s) for one of theirs: their query, key and value are packed."""
    if "linear_qkv" in name:
        stem = name.replace("mhsa.linear_qkv", "attention.{}")
        return [stem.format(part) for part in ("query", "key", "value")]
    for theirs, ours in PARTS.items():
        name = name.replace(theirs, ours)
    return [name]


def build(salt: str) -> tuple[DecoderLM, dict[str, list[torch.nn.Parameter]]]:
    width, vocabulary, layers, heads, _ = golden(salt, "cfg").tolist()
    config = DecoderConfig(vocabulary, width, layers, heads, rope_theta=None)
    model = DecoderLM(config).double()
    ours, theirs = dict(model.named_parameters()), {}
    for name, shape in zip(golden(salt, "names"), golden(salt, "shapes"), strict=True):
        sizes = [int(size) for size in str(shape).strip("()").replace("x", ",").split(",") if size]
        seed = zlib.crc32((salt + str(name)).encode())
        value = torch.from_numpy(np.random.RandomState(seed).standard_normal(sizes))
        theirs[name] = [ours[our] for our in our_names(str(name))]
        for parameter, part in zip(theirs[name], value.chunk(len(theirs[name])), strict=True):
            parameter.data.copy_(part)
    return model, theirs


def shifted_loss(model: DecoderLM, ids: torch.Tensor) -> torch.Tensor:
    """Theirs: every token goes in, the last logits are dropped, and the loss is taken in fp32."""
    return model.parametrization.loss(model(ids)[:, :-1].float(), ids[:, 1:])


def rms(tensors: list[torch.Tensor]) -> float:
    return torch.cat([t.flatten() for t in tensors]).square().mean().sqrt().item()


@pytest.mark.parametrize("salt", ["m1", "m2"])
def test_logits_loss_and_gradients_equal_the_library(salt):
    model, theirs = build(salt)
    ids = torch.from_numpy(golden(salt, "ids"))[0]
    expected = torch.from_numpy(golden(salt, "logits"))
    torch.testing.assert_close(model(ids)[:, :3], expected, rtol=1e-10, atol=1e-12)
    loss = shifted_loss(model, ids)
    assert loss.item() == pytest.approx(float(golden(salt, "loss0")), rel=1e-10)
    loss.backward()
    ours = [rms([p.grad for p in parameters]) for parameters in theirs.values()]
    assert ours == pytest.approx(golden(salt, "grad_rms").tolist(), rel=1e-7)


@pytest.mark.parametrize("salt", ["m1", "m2"])
def test_tags_and_taus_equal_the_library(salt):
    model, theirs = build(salt)
    first = [parameters[0] for parameters in theirs.values()]
    assert [p.mup_type for p in first] == golden(salt, "mup_type").tolist()
    assert [p.mup_scaling_depth or 0 for p in first] == golden(salt, "mup_depth").tolist()
    taus = golden(salt, "taus")
    ours = [model.parametrization.tau(i, taus.size) for i in range(taus.size)]
    assert ours == pytest.approx(taus.flatten().tolist(), rel=1e-12)


@pytest.mark.parametrize("salt", ["m1", "m2"])
def test_adamw_groups_and_loss_curve_equal_the_library(salt):
    model, theirs = build(salt)
    lr, weight_decay = golden(salt, "lr_wd").tolist()
    optimizer = AdamW(model, lr, weight_decay=weight_decay, betas=(0.9, 0.999), eps=1e-8)
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    groups = [group_of[id(parameters[0])] for parameters in theirs.values()]
    assert [g["lr"] for g in groups] == pytest.approx(golden(salt, "group_lr").tolist(), rel=1e-12)
    decays = [g["weight_decay"] for g in groups]
    assert decays == pytest.approx(golden(salt, "group_wd").tolist(), rel=1e-12)
    curve = []
    for ids in torch.from_numpy(golden(salt, "ids")):
        optimizer.zero_grad()
        loss = shifted_loss(model, ids)
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    assert curve == pytest.approx(golden(salt, "loss_curve").tolist(), rel=1e-6)
    after = [rms([p.data for p in parameters]) for parameters in theirs.values()]
    assert after == pytest.approx(golden(salt, "param_rms_after").tolist(), rel=1e-7)


@pytest.mark.parametrize("rule", RULES["lr_scale"], ids=lambda r: f"{r['mup_type']}{r['shape']}")
def test_learning_rate_rules_equal_the_table(rule):
    parameter = Parameter(
        torch.zeros(rule["shape"]), rule["mup_type"], mup_scaling_depth=rule["depth"]
    )
    assert lr_scale(parameter, optimizer="adam") == pytest.approx(rule["adam"], rel=1e-12)
    assert lr_scale(parameter, optimizer="sgd") == pytest.approx(rule["sgd_none"], rel=1e-12)
    constrained = lr_scale(parameter, optimizer="sgd", readout_constraint="to_output_scale")
    assert constrained == pytest.approx(rule["sgd_to_output"], rel=1e-12)
    (group,) = param_groups([("p", parameter)], 2.0, 0.1)
    assert group["lr"] * group["weight_decay"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "rounding"),
    [
        ("fp8/E4M3", E4M3.quantize),
        ("fp8/E5M2", E5M2.quantize),
        ("fp8/E5M10", FPFormat(5, 10).quantize),
        ("fp8_torch/e4m3fn", round_e4m3fn),
        ("fp8_torch/e5m2", round_e5m2),
    ],
)
def test_rounding_equals_the_table(name, rounding):
    table, key = name.split("/")
    x = torch.tensor(RULES["fp8"]["x"])
    expected = torch.tensor(RULES[table][key])
    torch.testing.assert_close(rounding(x), expected, rtol=0, atol=0)
    assert (rounding(x).signbit() == expected.signbit()).all()
    assert RULES["fp8"]["E4M3_max"] == E4M3.max
    assert RULES["fp8"]["E5M2_max"] == E5M2.max


def test_the_library_format_has_one_binade_more_below_and_rounds_ties_towards_zero():
    """2^-10 is E4M3's smallest value there (hardware: 2^-9); 1.1875 lies between 1.125 and 1.25."""
    x = torch.tensor([2**-10, 1.5 * 2**-10, 1.1875, -1.1875, 1.0625, 2**-11, 1e9, float("nan")])
    expected = torch.tensor([2**-10, 2**-10, 1.125, -1.125, 1.0, 0.0, 240.0, float("nan")])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        found = E4M3.quantize(x.to(dtype))
        torch.testing.assert_close(found, expected.to(dtype), rtol=0, atol=0, equal_nan=True)
