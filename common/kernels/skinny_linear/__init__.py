"""x W^T + b for the few rows of a decoding step, on one thread of a CPU."""

from ritornello.common.kernels.skinny_linear.operator import obstacle, pack_panels, skinny_linear

__all__ = ["obstacle", "pack_panels", "skinny_linear"]
