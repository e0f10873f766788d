"""NaN and infinity are found wherever they stand."""

import pytest
import torch

from ritornello.common.finite import all_finite


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_value_is_found_anywhere(dtype: torch.dtype, bad: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((1,), (33,), (7, 65), (3, 17, 5)):
        values = torch.randn(*shape, generator=generator).to(dtype)
        assert all_finite(values)
        for place in {0, values.numel() // 2, values.numel() - 1}:
            spoilt = values.clone()
            spoilt.view(-1)[place] = bad
            assert not all_finite(spoilt)
            assert not all_finite(spoilt.transpose(0, -1))


def test_the_largest_finite_values_and_no_values_pass() -> None:
    largest = torch.finfo(torch.float16).max
    assert all_finite(torch.tensor([largest, -largest, largest], dtype=torch.float16))
    assert all_finite(torch.empty(0, 3))
