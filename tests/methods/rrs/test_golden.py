"""Values of the published quantiser code."""

import numpy as np
import pytest
import torch
from torch import nn

from ritornello.methods.rrs import (
    gptq_quantize,
    pack_int4,
    quantize_per_token,
    quantize_weight,
    unpack_int4,
)
from ritornello.methods.rrs.gptq import Hessian
from ritornello.methods.rrs.kv_cache import KeyQuantizer
from ritornello.methods.rrs.linear import ActivationQuantizer, QuantLinear
from ritornello.methods.rrs.rotation import _fold_norm

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def load(golden):
    def arrays(name: str) -> dict[str, torch.Tensor]:
        with np.load(golden / "rrs" / f"{name}.npz") as file:
            found = {key: torch.from_numpy(np.asarray(file[key])) for key in file.files}
        # Inputs are stored in half precision, exactly.
        return {k: v.float() if v.dtype == torch.half else v for k, v in found.items()}

    return arrays


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("act_sym4", {}),
        ("act_sym8", {"bits": 8}),
        ("act_asym4", {"symmetric": False}),
        ("act_sym4_clip0.9", {"clip": 0.9}),
        ("act_sym4_group32", {"group_size": 32}),
    ],
)
def test_activations_per_token(load, key, options):
    values = load("activation")
    x = quantize_per_token(values["x"], **options).dequantize()
    torch.testing.assert_close(x, values[key], **TOLERANCE)


@pytest.mark.parametrize(
    ("key", "stat", "group_size"),
    [("plain", None, 1), ("rs_per_channel", "absmax", 1), ("rs_group128", "absmax", 128)],
)
@pytest.mark.parametrize("shape", ["y", "y2d", "ydecode"])
def test_layer_output(load, key, stat, group_size, shape):
    """Whole sequences, one sequence without a batch axis, one token."""
    values = load("activation")
    x = {"y": values["x"], "y2d": values["x"][0], "ydecode": values["x"][:, :1]}[shape]
    linear = nn.Linear(256, 8)
    linear.weight.data, linear.bias.data = values["weight"], values["bias"]
    layer = QuantLinear.from_linear(linear, None)
    layer.quantizer = ActivationQuantizer(4, 1.0, stat, group_size)
    # One rounding tie in another direction moves an output by a step times a weight.
    torch.testing.assert_close(layer(x), values[f"{shape}_{key}"], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("sym4_minmax", {"clip_search": False}),
        ("sym4_mse", {}),
        ("asym4_mse", {"symmetric": False}),
        ("sym8_mse", {"bits": 8}),
        ("sym4_pertensor", {"clip_search": False, "per_channel": False}),
        ("sym4_group32", {"group_size": 32}),
    ],
)
def test_weights(load, key, options):
    values = load("weight")
    weight = quantize_weight(values["W"], **options)
    torch.testing.assert_close(weight.dequantize(), values[key], **TOLERANCE)
    if f"{key}_scale" in values:
        torch.testing.assert_close(weight.scale, values[f"{key}_scale"], **TOLERANCE)
        # Ours is shifted so that the levels fit int8.
        zero = weight.zero + (0 if options.get("symmetric", True) else 8)
        torch.testing.assert_close(zero, values[f"{key}_zero"], **TOLERANCE)


def test_int4_packing(load):
    values = load("weight")
    assert torch.equal(pack_int4(values["int4"]), values["int4_packed"])
    assert torch.equal(unpack_int4(values["int4_packed"]), values["int4"])


@pytest.mark.parametrize(
    ("key", "options"),
    [("default", {}), ("actorder", {"act_order": True}), ("group16", {"group_size": 16})],
)
def test_gptq(load, key, options):
    values = load("gptq")
    hessian = Hessian(64)
    for sequence in values["X"]:
        hessian.add(sequence)
    torch.testing.assert_close(hessian.matrix, values["H"], **TOLERANCE)
    weight = gptq_quantize(values["W"], hessian.matrix, block_size=32, **options).dequantize()
    torch.testing.assert_close(weight, values[f"Q_{key}"], **TOLERANCE)
    x = values["X"].flatten(0, 1)
    error = (x @ (weight - values["W"]).T).square().sum()
    torch.testing.assert_close(error, values[f"err_{key}"], rtol=1e-4, atol=0)
    assert error < values["err_rtn"]


@pytest.mark.parametrize("key", ["per_head", "per_token"])
def test_rotated_and_rounded_keys(load, key):
    values = load("kv_rotation")
    quantizer = KeyQuantizer(4, block=16, per_head=key == "per_head")
    query, keys = quantizer(values["q"], values["k"])
    torch.testing.assert_close(query, values[f"q_{key}"], **TOLERANCE)
    torch.testing.assert_close(keys, values[f"k_{key}"], **TOLERANCE)


def test_norm_gain_is_folded_into_the_columns(load):
    values = load("norm_fusion")
    block = nn.Module()
    block.norm = nn.RMSNorm(8)
    block.norm.weight.data = values["norm_weight"]
    linear = nn.Linear(8, 5, bias=False)
    linear.weight.data = values["linear_before"]
    _fold_norm(block, "norm", [linear])
    torch.testing.assert_close(linear.weight.data, values["linear_after"], **TOLERANCE)
    assert block.norm.weight.eq(1).all()
