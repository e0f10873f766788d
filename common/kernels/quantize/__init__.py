"""Channel scales over tokens, and smoothing, scaling and rounding to integers in one pass."""

from ritornello.common.kernels.quantize.operator import (
    rotate_smooth_quantize,
    smooth_quantize,
    sorted_channel_scale,
)

__all__ = ["rotate_smooth_quantize", "smooth_quantize", "sorted_channel_scale"]
