"""Integer matrix product whose sum is scaled block by block along the channels."""

from ritornello.common.kernels.block_gemm.operator import block_scaled_matmul
from ritornello.common.kernels.block_gemm.packing import pack_int4, unpack_int4

__all__ = ["block_scaled_matmul", "pack_int4", "unpack_int4"]
