"""The block-scaled integer product: every backend, packed or not, against exact sums."""

import pytest
import torch

from ritornello.common.kernels.block_gemm import block_scaled_matmul, pack_int4, unpack_int4
from ritornello.common.kernels.dispatch import triton_obstacle

REASON = triton_obstacle("cpu")
TRITON = pytest.param(
    "triton", marks=pytest.mark.skipif(REASON is not None, reason=str(REASON)), id="triton"
)


def case(batch: int, tokens: int, channels: int, outputs: int, group_size: int):
    generator = torch.Generator().manual_seed(channels)
    order = torch.stack([torch.randperm(channels, generator=generator) for _ in range(batch)])
    return {
        "q": torch.randint(-8, 8, (batch, tokens, channels), generator=generator).to(torch.int8),
        "weight": torch.randint(-8, 8, (outputs, channels), generator=generator).to(torch.int8),
        "order": order,
        "group_scale": torch.rand(batch, -(-channels // group_size), generator=generator) * 9,
        "row_scale": torch.rand(batch, tokens, generator=generator),
        "weight_scale": torch.rand(outputs, generator=generator),
        "group_size": group_size,
    }


CASES = [(1, 1, 32, 1, 32), (2, 5, 96, 7, 64), (1, 17, 200, 65, 128), (2, 3, 48, 10, 1000)]


@pytest.mark.parametrize("shape", CASES, ids=str)
@pytest.mark.parametrize("backend", ["cpu", TRITON])
def test_backend_equals_exact_block_sums(backend, shape):
    given = case(*shape)
    expected = block_scaled_matmul(**given, backend="reference")
    y = block_scaled_matmul(**given, backend=backend)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-4)
    packed = given | {"weight": pack_int4(given["weight"])}
    torch.testing.assert_close(block_scaled_matmul(**packed, backend=backend), y, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["cpu", "reference", TRITON])
def test_product_equals_the_dequantized_one(backend):
    """Scales of 4 orders of magnitude apart: a block must not see another block's scale."""
    given = case(1, 9, 128, 11, 32)
    given["group_scale"] = torch.tensor([[1e3, 1.0, 1e-1, 10.0]])
    x = given["q"] * given["group_scale"].repeat_interleave(32, dim=1)[:, None]
    x = torch.zeros_like(x).scatter(2, given["order"][:, None].expand_as(x), x)
    weight = given["weight"] * given["weight_scale"][:, None]
    expected = x * given["row_scale"][..., None] @ weight.T
    y = block_scaled_matmul(**given, backend=backend)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("backend", ["cpu", "reference", TRITON])
def test_eight_bit_sums_do_not_saturate(backend):
    given = case(1, 2, 512, 3, 512)
    given["q"] = torch.full((1, 2, 512), -128, dtype=torch.int8)
    given["weight"] = torch.full((3, 512), -128, dtype=torch.int8)
    scales = {"group_scale": torch.ones(1, 1), "row_scale": torch.ones(1, 2)}
    y = block_scaled_matmul(**(given | scales | {"weight_scale": torch.ones(3)}), backend=backend)
    assert y.eq(512 * 128 * 128).all()


@pytest.mark.parametrize("backend", ["cpu", "reference", TRITON])
def test_operator_is_registered_properly(backend):
    given = case(1, 3, 64, 5, 32)
    utils = ("test_schema", "test_faketensor")
    operator = torch.ops.ritornello.block_scaled_matmul.default
    torch.library.opcheck(operator, (*given.values(), backend), test_utils=utils)


def test_packing_puts_the_even_column_low_and_keeps_the_sign():
    q = torch.tensor([[-8, 7, 0, -1]], dtype=torch.int8)
    packed = pack_int4(q)
    assert packed.tolist() == [[0x78, 0xF0]]
    assert torch.equal(unpack_int4(packed), q)
    assert torch.equal(pack_int4(q.long()), packed)
    assert unpack_int4(pack_int4(q[:0])).shape == (0, 4)


@pytest.mark.parametrize(
    ("q", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.int8), "even number of columns"),
        (torch.full((1, 2), 8, dtype=torch.int8), r"-8\.\.7"),
        (torch.zeros(1, 2), "signed integers"),
    ],
)
def test_packing_refuses_what_does_not_fit(q, message):
    with pytest.raises(ValueError, match=message):
        pack_int4(q)


def test_wrong_shapes_name_the_argument():
    given = case(1, 2, 8, 3, 4)
    for name, bad in {
        "weight_scale": torch.ones(4),
        "order": torch.zeros(1, 7, dtype=torch.long),
        "weight": torch.zeros(3, 5, dtype=torch.int8),
        "q": torch.zeros(2, 8, dtype=torch.int8),
    }.items():
        with pytest.raises(ValueError, match=f"^{name} must"):
            block_scaled_matmul(**(given | {name: bad}))
    with pytest.raises(ValueError, match="group_size is 4"):
        block_scaled_matmul(**case(1, 2, 8, 3, 4), backend="triton")
