"""Runtime Smooth in one layer: equal to the loops, and the invariants of its equations."""

import pytest
import torch
from torch import nn

from ritornello.common.kernels.block_gemm import pack_int4
from ritornello.common.kernels.hadamard import hadamard_matrix
from ritornello.methods.rrs import (
    QuantLinear,
    quantize_per_token,
    quantize_weight,
    rrs_linear,
    runtime_smooth_scale,
)
from ritornello.methods.rrs.clipping import best_share, search_clipping, weight_range
from ritornello.methods.rrs.gptq import Hessian, gptq_quantize
from ritornello.methods.rrs.input_rotation import InputRotation
from ritornello.methods.rrs.linear import ActivationQuantizer, TokenContext
from ritornello.methods.rrs.reference import runtime_smooth_linear


@pytest.fixture
def x(generator):
    x = torch.randn(2, 9, 96, generator=generator)
    x[..., 5] *= 50  # a channel outlier
    x[0, 3, 7] = 400  # a spike
    x[..., 11] = 0  # an empty channel
    x[1, 0] = 0  # an empty token
    return x


@pytest.fixture
def weight(generator):
    return quantize_weight(torch.randn(10, 96, generator=generator))


def layer(weight, *, execution="simulate", bits=4, stat="absmax", group_size=32, decode="online"):
    linear = QuantLinear.from_linear(nn.Linear(96, 10, bias=False), None)
    made = linear.with_integers(weight, 4)
    made.quantizer = ActivationQuantizer(bits, 1.0, stat, group_size, decode)
    made.set_execution(execution)
    return made


@pytest.mark.parametrize("group_size", [1, 20, 32, 128])
def test_layer_equals_the_loops_over_the_equations(x, weight, group_size):
    for sequence in x:
        expected = runtime_smooth_linear(sequence, weight.q, weight.scale[:, 0], group_size)
        given = {"group_size": group_size}
        y = rrs_linear(sequence, pack_int4(weight.q), weight.scale[:, 0], **given)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-3)
        simulated = layer(weight, group_size=group_size)(sequence)
        torch.testing.assert_close(simulated, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("stat", [None, "absmax", "token_normalised"])
def test_integer_execution_equals_the_simulation(x, weight, stat):
    simulated, integer = (layer(weight, execution=e, stat=stat) for e in ("simulate", "integer"))
    torch.testing.assert_close(integer(x), simulated(x), rtol=1e-4, atol=1e-3)


def test_one_token_and_a_scale_per_channel_is_exact(x):
    """s equals |x|, so every smoothed value is +-1: the reason not to report decode at g=1."""
    one = x[:, 3:4]
    smoothed = one / runtime_smooth_scale(one, group_size=1)
    q = quantize_per_token(smoothed, bits=4).dequantize()
    torch.testing.assert_close(q, smoothed, rtol=1e-6, atol=1e-6)


def test_scaling_the_input_leaves_the_integers_unchanged(x):
    def levels(values):
        return quantize_per_token(values / runtime_smooth_scale(values, 32)).q

    assert torch.equal(levels(x), levels(8 * x))


def test_permuting_channels_of_input_and_weight_leaves_the_output(x, weight, generator):
    order = torch.randperm(96, generator=generator)
    y = layer(weight)(x)
    permuted = layer(weight._replace(q=weight.q[:, order].contiguous()))(x[..., order])
    torch.testing.assert_close(permuted, y, rtol=1e-4, atol=1e-3)


def test_group_scale_is_the_largest_of_its_channels(x):
    alone, grouped = runtime_smooth_scale(x, 1), runtime_smooth_scale(x, 40)
    assert grouped.ge(alone).all()
    assert grouped.amax(-1).equal(alone.amax(-1))
    # 96 channels in runs of 40, 40 and 16.
    assert [len(row.unique()) for row in grouped[:, 0]] == [3, 3]
    assert runtime_smooth_scale(x[0], 40).shape == (1, 96)


def test_token_normalised_statistic_ignores_how_large_a_token_is(x):
    scale = runtime_smooth_scale(x, 1, "token_normalised")
    louder = x.clone()
    louder[0, 2] *= 1000
    torch.testing.assert_close(runtime_smooth_scale(louder, 1, "token_normalised"), scale)
    assert not torch.allclose(runtime_smooth_scale(louder, 1), runtime_smooth_scale(x, 1))
    assert scale.max() <= 1


def test_zero_channels_tokens_and_inputs_give_zeros(x, weight):
    assert layer(weight)(torch.zeros_like(x)).eq(0).all()
    assert layer(weight)(x)[1, 0].eq(0).all()
    assert layer(weight, execution="integer")(torch.zeros_like(x)).eq(0).all()


def test_padding_does_not_set_a_scale(x, weight):
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[:, :2] = False
    garbage = x.clone()
    garbage[:, :2] = 1e4
    made = layer(weight)
    made.context = TokenContext(shape=(2, 9), keep=keep)
    torch.testing.assert_close(made(garbage)[:, 2:], made(x)[:, 2:])
    made.context = TokenContext(shape=(2, 9))
    assert not torch.allclose(made(garbage)[:, 2:], made(x)[:, 2:])


def test_flattened_tokens_get_the_scales_of_their_own_sequence(x, weight):
    made = layer(weight)
    expected = made(x)
    made.context = TokenContext(shape=(2, 9))
    torch.testing.assert_close(made(x.flatten(0, 1)), expected.flatten(0, 1))


def test_decode_reuses_the_scales_of_the_prefill(x, weight):
    made = layer(weight, decode="reuse", group_size=1)
    made.context = TokenContext(shape=(2, 8))
    made(x[:, :8])
    made.context.shape, made.context.continuing = (2, 1), True
    step = made(x[:, 8:])
    scale = runtime_smooth_scale(x[:, :8], 1)
    q = quantize_per_token(x[:, 8:] / scale).dequantize() * scale
    torch.testing.assert_close(step, q @ made.dequantized_weight().T, rtol=1e-4, atol=1e-3)
    made.context.shape = (1, 1)
    with pytest.raises(ValueError, match="prefill had 2 sequences"):
        made(x[:1, 8:])


@pytest.mark.parametrize("execution", ["simulate", "integer"])
def test_a_rotated_layer_reuses_the_scales_of_the_rotated_prefill(weight, execution, generator):
    x = torch.randn(2, 9, 96, generator=generator)
    made = layer(weight, execution=execution, decode="reuse")
    made.rotation = InputRotation(96)
    turned = x @ hadamard_matrix(96) * 96**-0.5
    plain = layer(weight, decode="reuse")
    for made_, input_ in ((made, x), (plain, turned)):
        made_.context = TokenContext(shape=(2, 8))
        made_.prefill = made_(input_[:, :8])
        made_.context.shape, made_.context.continuing = (2, 1), True
    torch.testing.assert_close(made.prefill, plain.prefill, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(made(x[:, 8:]), plain(turned[:, 8:]), rtol=1e-4, atol=1e-3)


def test_a_new_prefill_replaces_the_scales_of_an_earlier_one(x, weight):
    made = layer(weight, decode="reuse", group_size=1)
    made.context = TokenContext(shape=(2, 9))
    made(100 * x)
    made.context.prefills += 1  # one that left this layer out, as a router may
    made.context.continuing = True
    torch.testing.assert_close(made(x), layer(weight, group_size=1)(x))


def test_more_bits_err_less(x, generator):
    weight = torch.randn(10, 96, generator=generator)
    exact = x @ weight.T
    errors = []
    for bits in (2, 4, 8):
        q = (
            quantize_per_token(x, bits=bits).dequantize()
            @ quantize_weight(weight, bits).dequantize().T
        )
        errors.append((q - exact).norm().item())
    assert errors[0] > errors[1] > 4 * errors[2]


@pytest.mark.parametrize("shape", [(1, 8), (0, 8), (3, 5, 7), (2, 1, 3, 12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_rounding_errs_by_half_a_step_at_most(shape, dtype, symmetric, bits, generator):
    x = torch.randn(shape, generator=generator).to(dtype)
    rounded = quantize_per_token(x, bits=bits, symmetric=symmetric)
    assert rounded.q.shape == x.shape
    assert rounded.scale.shape == (*shape[:-1], 1)
    # At 2 bits the lowest level, -2, lies outside the symmetric range and is never needed.
    error = (rounded.dequantize() - x.float()).abs()
    assert error.le(0.5001 * rounded.scale).all()
    if symmetric:
        assert rounded.zero.eq(0).all()
    zeros = quantize_per_token(torch.zeros_like(x), bits=bits, symmetric=symmetric)
    assert zeros.dequantize().eq(0).all()


def test_layer_takes_one_token_and_several_batch_axes(x, weight):
    made = layer(weight)
    stacked = torch.stack([x, 2 * x])
    expected = torch.stack([made(x), made(2 * x)])
    torch.testing.assert_close(made(stacked), expected)
    torch.testing.assert_close(made(x[0, 3]), made(x[0, 3:4])[0])
    with pytest.raises(ValueError, match="not empty"):
        made(x[:, :0])


def test_a_layer_first_used_in_inference_mode_serves_outside_of_it(x, weight):
    made = layer(weight)
    with torch.inference_mode():
        expected = made(x)
    torch.testing.assert_close(made(x.requires_grad_()), expected)


def test_symmetric_range_reaches_its_lowest_level():
    x = torch.tensor([[-8.0, 7.0, 0.5, 3.0]])
    assert quantize_per_token(x, clip=0.875).q.tolist() == [[-8, 7, 0, 3]]


def test_weights_and_hessians_that_are_not_finite_are_named(generator):
    weight = torch.randn(4, 8, generator=generator)
    bad = weight.clone()
    bad[1, 2] = torch.inf
    for call in (quantize_weight, lambda w: gptq_quantize(w, torch.eye(8))):
        with pytest.raises(ValueError, match="weight must be finite"):
            call(bad)
    with pytest.raises(ValueError, match="hessian must be finite"):
        gptq_quantize(weight, torch.full((8, 8), torch.nan))
    with pytest.raises(ValueError, match=r"hessian must be \(8, 8\)"):
        gptq_quantize(weight, torch.eye(9))
    with pytest.raises(ValueError, match="damping"):
        gptq_quantize(weight, torch.eye(8), damping=-1.0)


def test_gptq_keeps_outputs_better_than_rounding(generator):
    mixing = torch.randn(64, 64, generator=generator)
    inputs = torch.randn(400, 64, generator=generator) @ mixing
    weight = torch.randn(8, 64, generator=generator)
    hessian = Hessian(64)
    hessian.add(inputs)

    def error(rounded):
        return (inputs @ (rounded.dequantize() - weight).T).norm()

    assert error(gptq_quantize(weight, hessian.matrix)) < 0.8 * error(quantize_weight(weight))


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_compiled_clip_search_equals_the_one_in_torch(bits, generator):
    rows = torch.randn(40, 77, generator=generator) * torch.rand(40, 1, generator=generator)
    rows[3] = 0
    low, high = weight_range(rows, symmetric=True)
    _, clipped = search_clipping(rows, low, high, bits, symmetric=True)
    share = best_share(rows, low, high, bits, symmetric=True)
    torch.testing.assert_close(clipped, share * high, rtol=1e-6, atol=0)


def test_layer_runs_under_autocast_and_compile(x, weight):
    made = layer(weight)
    expected = made(x)
    compiled = torch.compile(made, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        low = made(x)
    assert low.dtype == torch.bfloat16
    assert (low.float() - expected).norm() < 0.02 * expected.norm()
