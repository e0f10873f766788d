"""Matrix products with chosen rows of a weight, read through an index list."""

from ritornello.common.kernels.gather_gemm.operator import gather_combine, gather_linear

__all__ = ["gather_combine", "gather_linear"]
