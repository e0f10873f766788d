"""Scan orders and the mixer's symmetries."""

import pytest
import torch

from ritornello.methods.arm import MambaMixer
from ritornello.methods.arm.mixer import merge_orders, read_in_order, scan_orders


def test_orders_of_a_small_grid_with_a_class_token():
    # 2 rows, 3 columns, class token at index 3:  0 1 2 [3] 4 5 6
    orders = scan_orders("cross", (2, 3), 3)
    assert orders[0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert orders[1].tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert orders[2].tolist() == [0, 4, 1, 3, 5, 2, 6]  # columns (0 4)(1 5)(2 6), 3 in its place
    assert orders[3].tolist() == [6, 2, 5, 3, 1, 4, 0]


def test_reading_and_merging_are_adjoint_permutations(generator):
    x = torch.randn(2, 12, 5, generator=generator)
    orders = scan_orders("cross", (3, 4))[None]
    read = read_in_order(x, orders)
    torch.testing.assert_close(merge_orders(read, orders), 4 * x)
    y = torch.randn(read.shape, generator=generator)
    torch.testing.assert_close((read * y).sum(), (x * merge_orders(y, orders)).sum())


@pytest.mark.usefixtures("float64")
def test_gradients_through_the_orders_are_those_of_finite_differences(generator):
    mixer = MambaMixer(4, d_state=2, directions="cross", cls_index=2)
    x = torch.randn(1, 5, 4, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mixer(x, grid=(2, 2)), (x,))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("cls_index", [None, 5])
def test_transposed_grid_with_swapped_parameters_gives_the_transposed_output(cls_index, generator):
    rows, columns = 3, 4
    mixer = MambaMixer(8, d_state=4, directions="cross", cls_index=cls_index)
    swapped = MambaMixer(8, d_state=4, directions="cross", cls_index=cls_index)
    state = {
        name: value if "proj." in name else value[[2, 3, 0, 1]]
        for name, value in mixer.state_dict().items()
    }
    swapped.load_state_dict(state)
    x = torch.randn(2, rows * columns + (cls_index is not None), 8, generator=generator)
    transpose = scan_orders("cross", (rows, columns), cls_index)[2]
    y = mixer(x, grid=(rows, columns))
    y_swapped = swapped(x[:, transpose], grid=(columns, rows))
    torch.testing.assert_close(y_swapped, y[:, transpose])


def test_causal_mixer_does_not_see_later_tokens(generator):
    mixer = MambaMixer(8, d_state=4)
    x = torch.randn(1, 9, 8, generator=generator)
    changed = x.clone()
    changed[:, 5:] += 1
    before, after = mixer(x), mixer(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_bidirectional_mixer_mirrors_with_swapped_parameters(generator):
    mixer = MambaMixer(8, d_state=4, directions="bidirectional")
    mirrored = MambaMixer(8, d_state=4, directions="bidirectional")
    state = mixer.state_dict().items()
    mirrored.load_state_dict({n: v if "proj." in n else v.flip(0) for n, v in state})
    x = torch.randn(2, 7, 8, generator=generator)
    torch.testing.assert_close(mirrored(x.flip(1)), mixer(x).flip(1))


def test_initial_values_are_the_papers():
    mixer = MambaMixer(32, directions="cross", depth=4)
    assert mixer.dt_rank == 2
    step = torch.nn.functional.softplus(mixer.dt_bias)
    assert step.min() >= 1e-4
    assert step.max() <= 0.1 + 1e-6
    torch.testing.assert_close(mixer.A_log.exp()[3, 5], torch.arange(1.0, 17))
    assert (mixer.D == 1).all()
    assert mixer.out_proj.weight.abs().max() <= 32**-0.5 / 2  # default bound over sqrt(depth)


def test_low_precision_stays_close(generator):
    """Autocast runs projections in bf16; the recurrence stays in fp32."""
    mixer = MambaMixer(16, directions="cross")
    x = torch.randn(2, 64, 16, generator=generator)
    expected = mixer(x, grid=(8, 8))
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x, grid=(8, 8))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.02)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="directions must be one of"):
        MambaMixer(8, directions="diagonal")
    mixer = MambaMixer(8, directions="cross")
    for grid in (None, (2, 4)):
        with pytest.raises(ValueError, match="grid must have 9 patches"):
            mixer(torch.zeros(1, 9, 8), grid=grid)
