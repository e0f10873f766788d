"""Every operator against values of the authors' library (tests/golden/umup/ops.npz)."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from ritornello.methods.umup import functional as U
from ritornello.methods.umup.functional.residual import transformer_residual_tau

GOLDEN = Path(__file__).parents[2] / "golden" / "umup"
OPS = np.load(GOLDEN / "ops.npz")
RULES = json.loads((GOLDEN / "rules.json").read_text())
TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
}


def operators() -> dict:
    sdpa, named = U.scaled_dot_product_attention, {}
    for mult in (0.25, 1.0, 4.0):
        for op in (U.gelu, U.silu, U.silu_glu, U.softmax, U.cross_entropy):
            named[f"{op.__name__}_mult{mult}"] = partial(op, mult=mult)
        named[f"sdpa_causal_mult{mult}"] = partial(sdpa, mult=mult, is_causal=True)
    for constraint in (None, "to_output_scale", "to_grad_input_scale", "gmean", "hmean", "amean"):
        named[f"linear_{constraint}"] = partial(U.linear, constraint=constraint)
        binary = "to_left_grad_scale" if constraint == "to_grad_input_scale" else constraint
        named[f"matmul_{constraint}"] = partial(U.matmul, constraint=binary)
    for tau in (0.5, 1.0, 2.0):
        named[f"residual_split_tau{tau}"] = partial(U.residual_split, tau=tau)
        named[f"residual_add_tau{tau}"] = partial(U.residual_add, tau=tau)
        named[f"residual_apply_tau{tau}"] = lambda x, w, tau=tau: U.residual_apply(
            lambda branch: U.linear(branch, w), x, tau
        )
    return named | {
        "sdpa_full": sdpa,
        "gelu_noconstraint": partial(U.gelu, constraint=None),
        "silu_noconstraint": partial(U.silu, constraint=None),
        "linear_readout": U.linear_readout,
        "linear_readout_out": partial(U.linear_readout, constraint="to_output_scale"),
        "conv1d": partial(U.conv1d, stride=2, padding=1),
        "conv1d_dw": partial(U.conv1d, padding=3, groups=4),
        "layer_norm": U.layer_norm,
        "rms_norm": U.rms_norm,
        "add": U.add,
        "add_bcast": partial(U.add, constraint=None),
        "add_scalar_tensor": U.add,
        "embedding": U.embedding,
        "mse_loss": U.mse_loss,
        "mse_sum": partial(U.mse_loss, reduction="sum"),
        "ce_sum": partial(U.cross_entropy, reduction="sum"),
        "dropout_eval": partial(U.dropout, p=0.3, training=False, scale_eval=True),
    }


def load(name: str, part: str, dtype: torch.dtype) -> list[torch.Tensor]:
    tensors, i = [], 0
    while f"{name}__{part}{i}" in OPS:
        tensor = torch.from_numpy(OPS[f"{name}__{part}{i}"])
        tensors.append(tensor.to(dtype) if tensor.is_floating_point() else tensor)
        i += 1
    return tensors


def test_every_golden_operator_is_covered():
    assert {key.rsplit("__", 1)[0] for key in OPS.files} == set(operators())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", sorted(operators()))
def test_values_and_gradients_equal_the_library(name, dtype):
    inputs = load(name, "in", dtype)
    leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    outputs = operators()[name](*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    expected = load(name, "out", dtype)
    assert len(outputs) == len(expected)
    for ours, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCE[dtype])
    gradients = torch.autograd.grad(outputs, leaves, load(name, "dy", dtype))
    for ours, theirs in zip(gradients, load(name, "grad", dtype), strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCE[dtype])


@pytest.mark.parametrize("name", sorted(RULES["residual_tau"]))
def test_residual_tau_equals_the_table(name):
    branches, mult, ratio = (float(number) for number in re.findall(r"[\d.]+", name))
    ours = [
        transformer_residual_tau(i, int(branches), residual_mult=mult, attention_ratio=ratio)
        for i in range(int(branches))
    ]
    assert ours == pytest.approx(RULES["residual_tau"][name], rel=1e-12)
