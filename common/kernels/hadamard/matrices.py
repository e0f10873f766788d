"""Hadamard matrices: powers of two (Sylvester) times a base of Paley's two constructions."""

import functools
import itertools

import torch
from jaxtyping import Float
from torch import Tensor

_LARGEST_BASE = 2048


def hadamard_matrix(n: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "n n"]:
    """A matrix H of +1 and -1 with H H^T = n I.

    It is the Kronecker product of the smallest base that exists for `n` and a Sylvester matrix;
    for a power of two it is the Sylvester matrix in natural order.

    Raises:
        ValueError: no matrix of order `n` is built from these constructions.
    """
    base, power = hadamard_factors(n)
    return torch.kron(_base_matrix(base), sylvester_matrix(power)).to(dtype)


def hadamard_order_exists(n: int) -> bool:
    """Whether `hadamard_matrix(n)` can be built."""
    return n >= 1 and _smallest_base(n) is not None


def hadamard_factors(n: int) -> tuple[int, int]:
    """(order of the base, power of two) whose Kronecker product is `hadamard_matrix(n)`.

    Raises:
        ValueError: no matrix of order `n` is built from these constructions.
    """
    base = _smallest_base(n) if n >= 1 else None
    if base is None:
        raise ValueError(
            f"n={n}: no Hadamard matrix of this order is known here (accepted: powers of two "
            "times 1 or a Paley order such as 12, 20, 28, 36, 44, 52, 60, 108, 148, 344); "
            "a random orthogonal or a block-diagonal Hadamard matrix serves instead"
        )
    return base, n // base


@functools.cache
def sylvester_matrix(n: int) -> Tensor:
    """The Sylvester matrix of a power of two, natural order, int8."""
    matrix = torch.ones(1, 1, dtype=torch.int8)
    while len(matrix) < n:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


@functools.cache
def _smallest_base(n: int) -> int | None:
    """Smallest m with n = m * 2^k for which a base of order m exists."""
    base = n
    while base % 2 == 0:
        base //= 2
    while base <= min(n, _LARGEST_BASE):
        if base == 1 or _paley_type(base) is not None:
            return base
        base *= 2
    return None


def _paley_type(order: int) -> int | None:
    """Which of Paley's constructions gives this order, if any.

    I: order = q + 1 with a prime power q = 3 mod 4. II: order = 2q + 2 with q = 1 mod 4.
    """
    if order % 4:
        return None
    if (order - 1) % 4 == 3 and _prime_power(order - 1):
        return 1
    if (order // 2 - 1) % 4 == 1 and _prime_power(order // 2 - 1):
        return 2
    return None


def _prime_power(q: int) -> tuple[int, int] | None:
    """(p, k) with q = p^k and p prime, or None."""
    if q < 2:
        return None
    prime = next((d for d in range(2, int(q**0.5) + 1) if q % d == 0), q)
    exponent = 0
    while q % prime == 0:
        q //= prime
        exponent += 1
    return (prime, exponent) if q == 1 else None


@functools.cache
def _base_matrix(order: int) -> Tensor:
    """The base of `order` as int8: 1, or Paley I or II."""
    if order == 1:
        return torch.ones(1, 1, dtype=torch.int8)
    kind = _paley_type(order)
    q = order - 1 if kind == 1 else order // 2 - 1
    residues = _jacobsthal_matrix(q)
    border = torch.ones(1, q, dtype=torch.int8)
    corner = torch.zeros(1, 1, dtype=torch.int8)
    if kind == 1:
        skew = torch.cat([torch.cat([corner, border], 1), torch.cat([-border.T, residues], 1)])
        return skew + torch.eye(order, dtype=torch.int8)
    conference = torch.cat([torch.cat([corner, border], 1), torch.cat([border.T, residues], 1)])
    identity = torch.eye(q + 1, dtype=torch.int8)
    plus = torch.tensor([[1, 1], [1, -1]], dtype=torch.int8)
    on_diagonal = torch.tensor([[1, -1], [-1, -1]], dtype=torch.int8)
    return torch.kron(conference, plus) + torch.kron(identity, on_diagonal)


def _jacobsthal_matrix(q: int) -> Tensor:
    """Q[a, b] = chi(a - b) over the field of q elements: 0, +1 for squares, -1 otherwise."""
    factors = _prime_power(q)
    assert factors is not None
    prime, degree = factors
    elements = list(itertools.product(range(prime), repeat=degree))
    index = {element: i for i, element in enumerate(elements)}
    modulus = _irreducible_polynomial(prime, degree)
    character = torch.full((q,), -1, dtype=torch.int8)
    character[0] = 0
    for element in elements[1:]:
        character[index[_field_product(element, element, modulus, prime)]] = 1
    digits = torch.tensor(elements)
    place = prime ** torch.arange(degree - 1, -1, -1)
    difference = (digits[:, None] - digits[None, :]) % prime
    return character[(difference * place).sum(-1)]


def _field_product(
    a: tuple[int, ...], b: tuple[int, ...], modulus: tuple[int, ...], prime: int
) -> tuple[int, ...]:
    """Product in GF(p^k); polynomials are tuples, the highest power first.

    `modulus` holds the lower coefficients of the monic polynomial of degree k.
    """
    degree = len(a)
    product = [0] * (2 * degree - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    for i in range(degree - 1):
        lead = product[i]
        for j, m in enumerate(modulus):
            product[i + 1 + j] -= lead * m
    return tuple(c % prime for c in product[degree - 1 :])


def _irreducible_polynomial(prime: int, degree: int) -> tuple[int, ...]:
    """Lower coefficients of a monic polynomial of this degree without a root or any factor."""
    if degree == 1:
        return (0,)
    reducible: set[tuple[int, ...]] = set()
    for low in range(1, degree // 2 + 1):
        for a in itertools.product(range(prime), repeat=low):
            for b in itertools.product(range(prime), repeat=degree - low):
                reducible.add(_monic_product((1, *a), (1, *b), prime))
    candidates = itertools.product(range(prime), repeat=degree)
    return next(c for c in candidates if c not in reducible)


def _monic_product(a: tuple[int, ...], b: tuple[int, ...], prime: int) -> tuple[int, ...]:
    """Lower coefficients of the product of two monic polynomials."""
    product = [0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    return tuple(c % prime for c in product[1:])
