"""Hadamard matrices of many orders and the fast transform by them."""

from ritornello.common.kernels.hadamard.matrices import hadamard_factors, hadamard_matrix
from ritornello.common.kernels.hadamard.operator import hadamard_transform

__all__ = ["hadamard_factors", "hadamard_matrix", "hadamard_transform"]
