"""Selective scan: every backend equals the loop in values and in every gradient."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ritornello.common.kernels.selective_scan import (
    causal_conv1d,
    mamba_ssm,
    native,
    reference,
    selective_scan,
    selective_state_update,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "arm" / "scan.npz"
needs_compiler = pytest.mark.skipif(
    native.obstacle() is not None, reason=f"no compiled scan here: {native.obstacle()}"
)
FAST = ["blocked", "sequential", pytest.param("compiled", marks=needs_compiler)]
SHAPES = [(2, 6, 37, 5, 2), (1, 70, 16, 16, 1), (2, 8, 1, 1, 4), (1, 4, 33, 40, 1)]
TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-12},
    torch.float32: {"rtol": 2e-4, "atol": 2e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}


def make_inputs(shape, dtype=torch.float64, seed=0):
    """Arguments of a scan of (batch, channels, length, states, groups), all differentiable."""
    batch, channels, length, states, groups = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes):
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    values = {
        "u": normal(batch, channels, length),
        "delta": normal(batch, channels, length) - 1,
        "A": -normal(channels, states).exp(),
        "B": normal(batch, groups, states, length),
        "C": normal(batch, groups, states, length),
        "D": normal(channels),
        "z": normal(batch, channels, length),
        "delta_bias": normal(channels),
        "initial_state": normal(batch, channels, states),
    }
    return {name: value.to(dtype).requires_grad_() for name, value in values.items()}


def results(inputs, **options):
    """Output, last state and all gradients of one scan."""
    y, last = selective_scan(**inputs, delta_softplus=True, return_last_state=True, **options)
    wanted = list(inputs.values())
    grads = torch.autograd.grad(y.float().sin().sum() + last.cos().sum(), wanted)
    return [y, last, *grads]


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_backend_equals_the_loop(shape, dtype, backend):
    inputs = make_inputs(shape, dtype)
    exact = dtype == torch.float64
    for got, expected in zip(
        results(inputs, backend=backend), results(inputs, backend="reference"), strict=True
    ):
        assert got.dtype == expected.dtype
        scale = 1 if exact else max(1.0, expected.abs().max().item())
        torch.testing.assert_close(got / scale, expected / scale, **TOLERANCE[dtype])


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(("b_groups", "c_groups"), [(None, 2), (1, None), (2, 3), (6, 1)])
def test_b_and_c_may_have_different_layouts(b_groups, c_groups, backend):
    inputs = make_inputs((2, 6, 17, 3, 6))
    repeated = dict(inputs)
    for name, groups in (("B", b_groups), ("C", c_groups)):
        matrix = inputs[name].detach()
        if groups is None:  # (channels, states): the same at every step
            inputs[name] = matrix[0, :, :, 0].clone().requires_grad_()
            repeated[name] = inputs[name][None, :, :, None].expand(2, 6, 3, 17)
        else:
            inputs[name] = matrix[:, :groups].clone().requires_grad_()
            repeated[name] = inputs[name].repeat_interleave(6 // groups, dim=1)
    expected = selective_scan(**repeated, delta_softplus=True, backend="reference")
    y = selective_scan(**inputs, delta_softplus=True, backend=backend)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-12)
    wanted = (inputs["B"], inputs["C"])
    got = torch.autograd.grad(y.sin().sum(), wanted)
    torch.testing.assert_close(got, torch.autograd.grad(expected.sin().sum(), wanted))


@pytest.mark.parametrize("backend", ["reference", *FAST])
@pytest.mark.parametrize("case", ["full", "len1", "bare", "n1"])
def test_golden_values_and_gradients(case, backend):
    stored = np.load(GOLDEN)
    arrays = {
        key.removeprefix(f"{case}_"): torch.from_numpy(np.asarray(stored[key]))
        for key in stored.files
        if key.startswith(f"{case}_")
    }
    names = [n for n in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias") if n in arrays]
    inputs = {name: arrays[name].requires_grad_() for name in names}
    options = {"delta_softplus": bool(arrays["softplus"]), "backend": backend}
    y, last = selective_scan(**inputs, return_last_state=True, **options)
    y.backward(arrays["dy"])
    torch.testing.assert_close(y, arrays["y"], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(last, arrays["last_state"], rtol=1e-8, atol=1e-9)
    for name in names:
        expected = arrays[f"grad_{name}"]
        torch.testing.assert_close(inputs[name].grad, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("backend", FAST)
def test_gradients_are_those_of_finite_differences(backend):
    inputs = make_inputs((1, 2, 18, 3, 1))

    def scan(*values):
        named = dict(zip(inputs, values, strict=True))
        return selective_scan(**named, delta_softplus=True, return_last_state=True, backend=backend)

    assert torch.autograd.gradcheck(scan, tuple(inputs.values()), fast_mode=True)


@pytest.mark.parametrize("backend", FAST)
def test_operator_passes_opcheck(backend):
    inputs = make_inputs((1, 4, 19, 3, 2))
    core = tuple(inputs[name] for name in ("u", "delta", "A", "B", "C", "initial_state"))
    torch.library.opcheck(torch.ops.ritornello.selective_scan.default, (*core, backend))


def test_compiles_into_one_graph():
    inputs = make_inputs((1, 4, 9, 3, 1), torch.float32)
    compiled = torch.compile(selective_scan, backend="aot_eager", fullgraph=True)
    expected = selective_scan(**inputs)
    torch.testing.assert_close(compiled(**inputs), expected)


@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_halving_by_hand(backend):
    """A = -ln 2 and steps of 1: h_t = h_{t-1} / 2 + u_t."""
    u = torch.tensor([[[1.0, 2.0, 0.0, 4.0]]])
    ones = torch.ones(1, 1, 4)
    A = torch.full((1, 1), -np.log(2))
    y = selective_scan(u, ones, A, ones, ones, backend=backend)
    # 1; 1/2 + 2; 2.5/2 + 0; 1.25/2 + 4
    torch.testing.assert_close(y, torch.tensor([[[1.0, 2.5, 1.25, 4.625]]]))


@pytest.mark.parametrize("backend", FAST)
def test_scan_in_pieces_equals_the_whole(backend):
    inputs = make_inputs((2, 4, 41, 3, 1))
    whole, last = selective_scan(**inputs, return_last_state=True, backend=backend)
    state, parts = inputs.pop("initial_state"), []
    for piece in (slice(0, 23), slice(23, 41)):
        sliced = {
            name: value[..., piece] if name in ("u", "delta", "B", "C", "z") else value
            for name, value in inputs.items()
        }
        y, state = selective_scan(
            **sliced, initial_state=state, return_last_state=True, backend=backend
        )
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, -1), whole)
    torch.testing.assert_close(state, last)


def test_single_steps_equal_the_scan():
    inputs = make_inputs((2, 4, 7, 3, 1))
    with torch.no_grad():
        expected, last = selective_scan(**inputs, delta_softplus=True, return_last_state=True)
        state = inputs["initial_state"].detach().clone()
        for t in range(7):
            at = {name: inputs[name][..., t] for name in ("u", "delta", "z")}
            B, C = inputs["B"][:, 0, :, t], inputs["C"][:, 0, :, t]
            rest = inputs["D"], at["z"], inputs["delta_bias"], True
            y = selective_state_update(state, at["u"], at["delta"], inputs["A"], B, C, *rest)
            torch.testing.assert_close(y, expected[..., t])
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("backend", FAST)
def test_past_does_not_see_the_future(backend):
    inputs = {name: value.detach() for name, value in make_inputs((1, 4, 35, 3, 1)).items()}
    before = selective_scan(**inputs, backend=backend)
    for name in ("u", "delta", "B", "C", "z"):
        inputs[name] = inputs[name].clone()
        inputs[name][..., 20:] += 1
    after = selective_scan(**inputs, backend=backend)
    assert torch.equal(before[..., :20], after[..., :20])
    assert not torch.allclose(before[..., 20:], after[..., 20:])


@pytest.mark.parametrize("backend", FAST)
def test_matrices_without_time_equal_constant_ones(backend):
    inputs = make_inputs((2, 4, 9, 3, 1))
    fixed = torch.randn(4, 3, dtype=torch.float64)
    repeated = fixed[None, :, :, None].expand(2, 4, 3, 9)
    short = selective_scan(**inputs | {"B": fixed, "C": fixed}, backend=backend)
    long = selective_scan(**inputs | {"B": repeated, "C": repeated}, backend="reference")
    torch.testing.assert_close(short, long)


@needs_compiler
def test_sums_do_not_depend_on_the_threads():
    inputs = make_inputs((2, 70, 20, 4, 1), torch.float32)
    alone = results(inputs, backend="compiled")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        together = results(inputs, backend="compiled")
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@needs_compiler
def test_exponential_of_extreme_steps():
    """Huge steps forget the state at once; NaN stays visible."""
    inputs = {k: v.detach() for k, v in make_inputs((1, 2, 5, 3, 1), torch.float32).items()}
    inputs["delta"] = torch.full_like(inputs["delta"], 1e4)
    got, expected = (selective_scan(**inputs, backend=b) for b in ("compiled", "reference"))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-2)
    inputs["u"] = torch.full_like(inputs["u"], torch.nan)
    assert selective_scan(**inputs, backend="compiled").isnan().all()


@pytest.mark.parametrize("backend", FAST)
def test_memory_kept_for_the_backward_grows_with_the_blocks(backend):
    """One state in 16 steps: 2048 steps keep 128 states a channel, not 2048."""
    kept = {}
    for length in (512, 2048):
        inputs = make_inputs((1, 2, length, 4, 1), torch.float32)
        core = [inputs[name] for name in ("u", "delta", "A", "B", "C", "initial_state")]
        starts = torch.ops.ritornello.selective_scan(*core, backend)[2]
        kept[length] = starts.numel()
    per_state = 2 * 4
    expected = [1, 1] if backend == "sequential" else [32, 128]
    assert [kept[512] // per_state, kept[2048] // per_state] == expected


def test_empty_sequence_returns_the_initial_state():
    inputs = make_inputs((2, 4, 3, 3, 1))
    for name in ("u", "delta", "B", "C", "z"):
        inputs[name] = inputs[name][..., :0]
    y, last = selective_scan(**inputs, return_last_state=True)
    assert y.shape == (2, 4, 0)
    assert torch.equal(last, inputs["initial_state"])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("delta", torch.zeros(1, 4, 8), "delta must have shape"),
        ("A", torch.zeros(5, 3), r"A must be \(channels=4"),
        ("A", torch.zeros(4, 3, dtype=torch.complex64), "A must be real"),
        ("B", torch.zeros(1, 3, 3, 9), "B must be"),
        ("C", torch.zeros(1, 3, 8), "C must be"),
        ("D", torch.zeros(3), "D must have shape"),
        ("z", torch.zeros(1, 4, 1), "z must have shape"),
        ("initial_state", torch.zeros(1, 4, 2), "initial_state must have shape"),
        ("u", torch.zeros(4, 9), "u must be"),
        ("u", torch.zeros(1, 4, 9, dtype=torch.int64), "u must be floating point"),
        ("A", torch.zeros(4, 3, device="meta"), "A must be on the input's cpu, got meta"),
    ],
)
def test_bad_shapes_name_the_argument(name, value, message):
    with pytest.raises(ValueError, match=message):
        selective_scan(**make_inputs((1, 4, 9, 3, 1), torch.float32) | {name: value})


def test_unknown_and_unusable_backends_are_refused(monkeypatch):
    inputs = make_inputs((1, 4, 9, 3, 1), torch.float32)
    with pytest.raises(ValueError, match="fastest"):
        selective_scan(**inputs, backend="fastest")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="CUDA"):
        selective_scan(**inputs, backend="triton")
    with pytest.raises(ValueError, match="needs a cuda device"):
        selective_scan(**inputs, backend="cuda")


def test_initial_state_adds_what_the_loop_says():
    inputs = make_inputs((2, 6, 11, 3, 2))
    arrays = [inputs[name] for name in ("u", "delta", "A", "B", "C", "initial_state")]
    arrays[1] = arrays[1].exp()
    with_state = reference.scan(*arrays)
    without = reference.scan(*arrays[:-1], torch.zeros_like(arrays[-1]))
    added = mamba_ssm.from_initial_state(*arrays[1:3], *arrays[4:])
    for whole, part, rest in zip(with_state, without, added, strict=True):
        torch.testing.assert_close(part + rest, whole)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x", torch.zeros(2, 5)),
        ("state", torch.zeros(2, 4, 2)),
        ("dt", torch.zeros(4)),
        ("B", torch.zeros(1, 3)),
        ("D", torch.zeros(3)),
        ("z", torch.zeros(2)),
        ("dt_bias", torch.zeros(2, 4)),
    ],
)
def test_bad_shapes_of_a_single_step_name_the_argument(name, value):
    step = {"state": torch.zeros(2, 4, 3), "x": torch.zeros(2, 4), "dt": torch.zeros(2, 4),
            "A": torch.zeros(4, 3), "B": torch.zeros(2, 3), "C": torch.zeros(2, 3)}  # fmt: skip
    with pytest.raises(ValueError, match=f"{name} must"):
        selective_state_update(**(step | {name: value}))


@pytest.mark.parametrize("width", [1, 4])
def test_causal_convolution_is_the_sum_of_shifted_inputs(width, generator):
    x = torch.randn(2, 3, 11, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, width, generator=generator, dtype=torch.float64)
    history = torch.randn(2, 3, width - 1, generator=generator, dtype=torch.float64)
    padded = torch.cat([history, x], -1)
    expected = sum(weight[:, k, None] * padded[..., k : k + 11] for k in range(width))
    torch.testing.assert_close(causal_conv1d(x, weight, initial_state=history), expected)
    whole = causal_conv1d(x, weight, torch.ones(3, dtype=torch.float64), "silu")
    assert whole.shape == x.shape
    with pytest.raises(ValueError, match="activation"):
        causal_conv1d(x, weight, activation="relu")


def test_empty_inputs_of_the_convolution_stay_empty():
    for shape in ((2, 3, 0), (2, 0, 4), (0, 3, 4)):
        assert causal_conv1d(torch.zeros(shape), torch.zeros(shape[1], 4)).shape == shape
    with pytest.raises(ValueError, match="weight must be on the input's cpu, got meta"):
        causal_conv1d(torch.zeros(1, 3, 5), torch.zeros(3, 4, device="meta"))


def test_forward_mode_derivatives_are_right_or_refused():
    """A custom operator of torch returns zeros instead."""
    inputs = make_inputs((1, 4, 9, 3, 1), torch.float64)
    u, tangent, step = inputs.pop("u").detach(), torch.ones(1, 4, 9, dtype=torch.float64), 1e-6

    def convolve(x):
        return causal_conv1d(x, torch.ones(4, 2, dtype=x.dtype), activation="silu")

    def scan(x, backend="reference"):
        return selective_scan(x, **inputs, backend=backend)

    for function in (convolve, scan):
        _, slope = torch.func.jvp(function, (u,), (tangent,))
        expected = (function(u + step * tangent) - function(u - step * tangent)) / (2 * step)
        torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(
        RuntimeError, match="no forward-mode derivative: selective_scan with backend='blocked'"
    ):
        torch.func.jvp(lambda x: scan(x, "blocked"), (u,), (tangent,))


@needs_compiler
@pytest.mark.parametrize("activation", ["silu", None])
@pytest.mark.parametrize("shape", [(2, 3, 11, 4), (1, 33, 8, 3), (3, 2, 1, 4), (1, 2, 25, 8)])
def test_compiled_convolution_equals_torch(shape, activation, monkeypatch, generator):
    batch, channels, length, width = shape

    def normal(*sizes):
        values = torch.randn(*sizes, generator=generator, dtype=torch.float64)
        return values.requires_grad_()

    inputs = [normal(batch, channels, length), normal(channels, width), normal(channels)]
    upstream = torch.randn(batch, channels, length, generator=generator, dtype=torch.float64)
    found = {}
    for backend in ("compiled", "reference"):
        monkeypatch.setenv("RITORNELLO_BACKEND", backend)
        y = causal_conv1d(*inputs, activation)
        found[backend] = [y, *torch.autograd.grad(y, inputs, upstream)]
    for got, expected in zip(found["compiled"], found["reference"], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    monkeypatch.delenv("RITORNELLO_BACKEND")
    single = causal_conv1d(*(value.float() for value in inputs), activation)
    torch.testing.assert_close(single, found["reference"][0].float(), rtol=1e-5, atol=1e-5)
    operator = torch.ops.ritornello.causal_conv1d.default
    torch.library.opcheck(operator, (*inputs, activation == "silu"))


TRITON_CHECK = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from test_selective_scan import make_inputs, results
for shape, dtype in [((1, 6, 19, 3, 2), torch.float64), ((1, 33, 3, 4, 1), torch.float32)]:
    inputs = make_inputs(shape, dtype)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    pairs = zip(results(inputs, backend="triton"), results(inputs, backend="reference"))
    for got, expected in pairs:
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
core = [inputs[name] for name in ("u", "delta", "A", "B", "C", "initial_state")]
torch.library.opcheck(torch.ops.ritornello.selective_scan.default, (*core, "triton"),
                      test_utils=("test_schema", "test_faketensor"))
print("equal")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_triton_kernels_equal_the_loop_in_the_interpreter():
    """In a process of its own: the interpreter has to be asked for before Triton is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", TRITON_CHECK, str(Path(__file__).parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "equal", done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_gpu_kernels_equal_the_loop(shape, dtype, backend):
    if backend == "cuda" and (reason := mamba_ssm.obstacle("cuda")):
        pytest.skip(reason)
    inputs = {k: v.detach().cuda().requires_grad_() for k, v in make_inputs(shape, dtype).items()}
    for got, expected in zip(
        results(inputs, backend=backend), results(inputs, backend="reference"), strict=True
    ):
        scale = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(got / scale, expected / scale, **TOLERANCE[dtype])
