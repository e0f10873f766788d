"""The fused quantiser: every backend against the reference, level by level."""

import pytest
import torch

from ritornello.common.kernels.dispatch import triton_obstacle
from ritornello.common.kernels.hadamard import hadamard_matrix
from ritornello.common.kernels.quantize import (
    cpu,
    rotate_smooth_quantize,
    smooth_quantize,
    sorted_channel_scale,
)


def fast_backends():
    for name, reason in {"cpu": cpu.obstacle(), "triton": triton_obstacle("cpu")}.items():
        yield pytest.param(
            name, marks=pytest.mark.skipif(reason is not None, reason=str(reason)), id=name
        )


def activations(batch: int, tokens: int, channels: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(channels)
    x = torch.randn(batch, tokens, channels, generator=generator)
    x[:, :, channels // 2] *= 40  # a channel outlier
    x[:, 0] = 0  # an empty token
    return x


SHAPES = [(1, 1, 1), (2, 7, 63), (1, 65, 130), (3, 2, 256)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("normalize_tokens", [False, True])
@pytest.mark.parametrize("backend", fast_backends())
def test_scales_and_their_order_equal_the_reference(backend, normalize_tokens, shape):
    x = activations(*shape)
    x[:, :, -1:] = x[:, :, :1]  # two equal channels
    keep = torch.rand(shape[:2], generator=torch.Generator().manual_seed(1)) > 0.3
    for mask in (None, keep):
        for group_size in (1, 32):
            given = {"normalize_tokens": normalize_tokens, "smallest": 0.5}
            fast = sorted_channel_scale(x, group_size, mask, backend=backend, **given)
            slow = sorted_channel_scale(x, group_size, mask, backend="reference", **given)
            torch.testing.assert_close(fast, slow, rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("backend", fast_backends())
def test_levels_equal_the_reference(backend, bits, shape):
    """Equal everywhere except where the quotient is a tie up to the last bit."""
    x = activations(*shape)
    batch, _, channels = shape
    generator = torch.Generator().manual_seed(2)
    order = torch.stack([torch.randperm(channels, generator=generator) for _ in range(batch)])
    group_size = 32
    scale = torch.rand(batch, -(-channels // group_size), generator=generator) + 0.5
    given = {"group_size": group_size, "bits": bits, "clip": 0.9}
    fast, fast_scale = smooth_quantize(x, order, scale, backend=backend, **given)
    slow, slow_scale = smooth_quantize(x, order, scale, backend="reference", **given)
    torch.testing.assert_close(fast_scale, slow_scale, rtol=1e-6, atol=0)
    difference = (fast.int() - slow.int()).abs()
    assert difference.max() <= 1
    assert difference.sum() <= 1e-3 * difference.numel()


@pytest.mark.parametrize("channels", [1, 12, 64, 192, 148])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("backend", ["reference", *fast_backends()])
def test_turning_and_rounding_at_once_is_one_after_the_other(backend, dtype, channels):
    """Orders with a power of two alone, a fused base, a narrow tile and a base too large."""
    x = activations(2, 5, channels).to(dtype)
    turned = x.float() @ hadamard_matrix(channels) * channels**-0.5
    order, scale = sorted_channel_scale(turned, 24, smallest=1e-5)
    given = {"group_size": 24, "clip": 0.9, "backend": backend}
    fast, fast_scale = rotate_smooth_quantize(x, order, scale, **given)
    slow, slow_scale = smooth_quantize(turned, order, scale, **given | {"backend": "reference"})
    torch.testing.assert_close(fast_scale, slow_scale, rtol=1e-5, atol=0)
    difference = (fast.int() - slow.int()).abs()
    assert difference.max() <= 1
    assert difference.sum() <= 2e-3 * difference.numel()


def test_orders_without_a_matrix_are_named():
    x = torch.ones(1, 2, 6)
    with pytest.raises(ValueError, match="n=6"):
        rotate_smooth_quantize(x, torch.arange(6)[None], torch.ones(1, 1), group_size=6)


@pytest.mark.parametrize("backend", ["reference", *fast_backends()])
def test_hand_made_case_rounds_half_to_even_and_reaches_the_lowest_level(backend):
    # Sorted order 2, 0, 1; scales 4 and 2 (groups of two); clip 0.875 lets -8 be reached.
    x = torch.tensor([[[2.0, 1.0, -16.0], [0.0, 0.0, 0.0]]])
    order, scale = torch.tensor([[2, 0, 1]]), torch.tensor([[4.0, 2.0]])
    # smoothed: -16/4, 2/4, 1/2; step = 0.875 * 4 / 7 = 0.5; levels -8, 1, 1.
    q, step = smooth_quantize(x, order, scale, group_size=2, clip=0.875, backend=backend)
    assert q.tolist() == [[[-8, 1, 1], [0, 0, 0]]]
    assert step.tolist() == [[0.5, 1.0]]
    x = torch.tensor([[[7.0, 2.5, 3.5, -0.5]]])  # step 1: ties 2.5 -> 2, 3.5 -> 4, -0.5 -> 0
    order = torch.arange(4)[None]
    q, _ = smooth_quantize(x, order, torch.ones(1, 1), group_size=4, backend=backend)
    assert q.tolist() == [[[7, 2, 4, 0]]]


@pytest.mark.parametrize("backend", ["reference", *fast_backends()])
def test_non_finite_values_reach_the_maxima(backend):
    """The caller can see them there; a maximum that loses NaN would hide them."""
    if backend == "triton":
        pytest.skip("maxima of Triton drop NaN as the hardware does; infinity is kept")
    x = torch.ones(1, 3, 8)
    x[0, 1, 3] = float("nan")
    order, scale = sorted_channel_scale(x, 1, backend=backend)
    assert order[0].tolist() == [3, 0, 1, 2, 4, 5, 6, 7]
    assert scale.isnan()[0].tolist() == [True] + [False] * 7


@pytest.mark.parametrize("backend", ["reference", *fast_backends()])
def test_operators_are_registered_properly(backend):
    x = activations(1, 3, 40)
    order, scale = torch.arange(40)[None], torch.ones(1, 3)
    utils = ("test_schema", "test_faketensor")
    operators = torch.ops.ritornello
    scales = operators.sorted_channel_scale.default
    torch.library.opcheck(scales, (x, None, 16, True, 1e-5, backend), test_utils=utils)
    quantize = operators.smooth_quantize.default
    torch.library.opcheck(quantize, (x, order, scale, 16, 7, 1.0, backend), test_utils=utils)
    turned = operators.rotate_smooth_quantize.default
    torch.library.opcheck(turned, (x, order, scale, 16, 7, 1.0, backend), test_utils=utils)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 0}, "bits"),
        ({"group_size": 0}, "group_size"),
        ({"order": torch.zeros(1, 3, dtype=torch.long)}, "order and group_scale"),
        ({"x": torch.ones(4, 4)}, "batch, tokens, channels"),
        ({"x": torch.ones(1, 0, 4)}, "not empty"),
    ],
)
def test_bad_input_names_the_argument(change, message):
    given = {
        "x": torch.ones(1, 2, 4),
        "order": torch.arange(4)[None],
        "group_scale": torch.ones(1, 2),
        "group_size": 2,
    }
    with pytest.raises(ValueError, match=message):
        smooth_quantize(**(given | change))
