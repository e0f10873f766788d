"""Channel maxima over tokens, and smoothing, scaling and rounding to integers in one pass."""

from ritornello.common.kernels.quantize.operator import (
    channel_absmax,
    rotate_smooth_quantize,
    smooth_quantize,
)

__all__ = ["channel_absmax", "rotate_smooth_quantize", "smooth_quantize"]
