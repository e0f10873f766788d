"""The product for few rows: against torch's, and to the bit against oneDNN's."""

import pytest
import torch
import torch.nn.functional as F

from ritornello.common.kernels.packed_linear import can_pack, pack_weight, packed_linear
from ritornello.common.kernels.skinny_linear import obstacle, pack_panels, skinny_linear

pytestmark = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))


def operands(rows, inputs, outputs):
    generator = torch.Generator().manual_seed(rows)
    return (
        torch.randn(rows, inputs, generator=generator),
        torch.randn(outputs, inputs, generator=generator) / inputs**0.5,
        torch.randn(outputs, generator=generator),
    )


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 9, 17, 40])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (5, 47), (513, 48), (1100, 97)])
def test_equals_the_linear_layer(rows, inputs, outputs):
    x, weight, bias = operands(rows, inputs, outputs)
    panels = pack_panels(weight)
    expected = F.linear(x.double(), weight.double(), bias.double()).float()
    ours = skinny_linear(x, panels, bias, outputs=outputs)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    # other strides, more dimensions, no bias
    turned = x.T.contiguous().T[None]
    ours = skinny_linear(turned, panels, None, outputs=outputs)
    torch.testing.assert_close(ours, expected[None] - bias, rtol=1e-5, atol=2e-5)


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="oneDNN sums otherwise elsewhere"
)
@pytest.mark.parametrize("rows", [1, 2, 13, 32])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 64), (576, 192), (1536, 576)])
def test_sums_as_onednn_does(rows, inputs, outputs):
    """So the same answers come on one thread and on several, with a compiler and without."""
    x, weight, bias = operands(rows, inputs, outputs)
    assert can_pack(weight)
    with torch.inference_mode():
        theirs = packed_linear(x, pack_weight(weight, 16), bias)
    ours = skinny_linear(x, pack_panels(weight), bias, outputs=outputs)
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6)
    assert (ours == theirs).float().mean() > 0.99


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (torch.zeros(2, 3), "with 4 inputs, got torch.float32 on cpu with 3"),
        (torch.zeros(2, 4, dtype=torch.bfloat16), "float32 on the CPU .* got torch.bfloat16"),
    ],
)
def test_what_it_cannot_multiply_is_told(x, told):
    with pytest.raises(ValueError, match=told):
        skinny_linear(x, pack_panels(torch.zeros(5, 4)), None, outputs=5)
