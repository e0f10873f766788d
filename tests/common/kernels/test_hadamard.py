"""Hadamard matrices of every order that is claimed, and the transform on every backend."""

import math

import pytest
import torch

from ritornello.common.kernels.dispatch import triton_obstacle
from ritornello.common.kernels.hadamard import (
    hadamard_factors,
    hadamard_matrix,
    hadamard_transform,
)
from ritornello.common.kernels.hadamard.matrices import hadamard_order_exists

ORDERS_OF_MODELS = [576, 1536, 4096, 11008, 13824, 14336, 28672]
# One order for each shape of tile: power of two, Paley I, Paley II, GF(3^2), narrow, wide base.
ORDERS = [1, 2, 12, 16, 20, 72, 192]


def backends():
    yield "reference"
    yield "cpu"
    missing = triton_obstacle("cpu")
    yield pytest.param("triton", marks=pytest.mark.skipif(missing is not None, reason=str(missing)))


def test_matrices_of_all_bases_up_to_512_are_orthogonal():
    """Kronecker products with Sylvester matrices keep H H^T = n I, so the bases are enough."""
    bases = {hadamard_factors(n)[0] for n in range(1, 513) if hadamard_order_exists(n)}
    assert {1, 12, 20, 28, 36, 44, 52, 60, 108, 148, 344} <= bases
    for base in bases:
        matrix = hadamard_matrix(base)
        assert matrix.abs().eq(1).all()
        assert torch.equal(matrix @ matrix.T, base * torch.eye(base)), base


@pytest.mark.slow
def test_all_bases_of_orders_up_to_4096_are_orthogonal_on_random_vectors():
    bases = {hadamard_factors(n)[0] for n in range(1, 4097) if hadamard_order_exists(n)}
    assert max(bases) == 2044
    for base in bases:
        check_on_random_vectors(base)


@pytest.mark.parametrize("n", [620, 844, 1332, 1988])
def test_larger_matrices_are_orthogonal_on_random_vectors(n):
    check_on_random_vectors(n)


def check_on_random_vectors(n):
    matrix = hadamard_matrix(n)
    x = torch.randint(-4, 5, (3, n), generator=torch.Generator().manual_seed(n)).float()
    assert torch.equal(x @ matrix @ matrix.T, n * x)


def test_powers_of_two_are_in_natural_order():
    expected = [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    assert hadamard_matrix(4).tolist() == expected


@pytest.mark.parametrize("n", [0, 3, 6, 9, 18, 92, 13696])
def test_order_without_a_matrix_names_the_fallback(n):
    with pytest.raises(ValueError, match=f"n={n}.*random orthogonal"):
        hadamard_matrix(n)


@pytest.mark.parametrize("n", ORDERS_OF_MODELS)
def test_orders_of_published_models_invert(n):
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(0))
    there = hadamard_transform(x, 1 / math.sqrt(n))
    torch.testing.assert_close(there.norm(dim=1), x.norm(dim=1), rtol=1e-5, atol=0)
    back = hadamard_transform(there, 1 / math.sqrt(n), transpose=True)
    torch.testing.assert_close(back, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("n", ORDERS)
@pytest.mark.parametrize("backend", backends())
def test_transform_and_gradient_equal_the_dense_product(backend, n, transpose):
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(2, 3, n, generator=generator, requires_grad=True)
    matrix = hadamard_matrix(n)
    matrix = (matrix.T if transpose else matrix) * 0.5
    y = hadamard_transform(x, 0.5, transpose=transpose, backend=backend)
    torch.testing.assert_close(y, x @ matrix, rtol=1e-5, atol=1e-4)
    direction = torch.randn(y.shape, generator=generator)
    (gradient,) = torch.autograd.grad(y, x, direction)
    torch.testing.assert_close(gradient, direction @ matrix.T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("backend", backends())
def test_half_precision_strided_and_empty_inputs(backend):
    x = torch.randn(5, 2, 96, generator=torch.Generator().manual_seed(0)).half()
    strided = x.transpose(0, 1)
    y = hadamard_transform(strided, 96**-0.5, backend=backend)
    assert y.dtype == torch.half
    expected = strided.float() @ hadamard_matrix(96) * 96**-0.5
    torch.testing.assert_close(y.float(), expected, rtol=2e-3, atol=2e-3)
    columns = torch.randn(96, 4, generator=torch.Generator().manual_seed(1)).T
    expected = columns @ hadamard_matrix(96)
    torch.testing.assert_close(hadamard_transform(columns, backend=backend), expected)
    assert hadamard_transform(x[:0], backend=backend).shape == (0, 2, 96)


def test_half_precision_does_not_overflow_inside():
    x = torch.full((1, 4096), 100.0, dtype=torch.half)
    assert hadamard_transform(x, 1 / 64).isfinite().all()


@pytest.mark.parametrize("backend", backends())
def test_operator_is_registered_properly(backend):
    x = torch.randn(2, 12, requires_grad=True)
    operator = torch.ops.ritornello.hadamard_transform.default
    torch.library.opcheck(operator, (x, 0.5, False, backend))


def test_compiled_function_gives_the_same_values():
    x = torch.randn(4, 24, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(lambda t: hadamard_transform(t, 0.2) + 1, backend="aot_eager")
    torch.testing.assert_close(compiled(x), hadamard_transform(x, 0.2) + 1)


def test_double_precision_stays_double():
    x = torch.randn(3, 24, generator=torch.Generator().manual_seed(0)).double()
    expected = x @ hadamard_matrix(24, torch.float64)
    torch.testing.assert_close(hadamard_transform(x), expected, rtol=1e-13, atol=1e-13)
    with pytest.raises(ValueError, match="triton"):
        hadamard_transform(x, backend="triton")


def test_integers_are_refused():
    with pytest.raises(ValueError, match="floating point"):
        hadamard_transform(torch.ones(4, dtype=torch.int32))
