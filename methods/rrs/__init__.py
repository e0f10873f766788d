"""Rotated Runtime Smooth: INT4 inference without training (ICLR 2025)."""

from ritornello.common.kernels.block_gemm import pack_int4, unpack_int4
from ritornello.common.kernels.hadamard import hadamard_matrix, hadamard_transform
from ritornello.methods.rrs.baselines import smooth_quant
from ritornello.methods.rrs.checkpoint import from_pretrained, save_pretrained
from ritornello.methods.rrs.config import RRSConfig
from ritornello.methods.rrs.gptq import gptq_quantize
from ritornello.methods.rrs.linear import QuantLinear, rrs_linear
from ritornello.methods.rrs.offload import offload_layers
from ritornello.methods.rrs.quantize import quantize_model, requantize_activations
from ritornello.methods.rrs.quantizers import quantize_per_token, quantize_weight
from ritornello.methods.rrs.rotation import fuse_rms_norms, rotate_model
from ritornello.methods.rrs.smoothing import runtime_smooth_scale

__all__ = [
    "QuantLinear", "RRSConfig", "from_pretrained", "fuse_rms_norms", "gptq_quantize",
    "hadamard_matrix", "hadamard_transform", "offload_layers", "pack_int4", "quantize_model",
    "quantize_per_token", "quantize_weight", "requantize_activations", "rotate_model", "rrs_linear",
    "runtime_smooth_scale", "save_pretrained", "smooth_quant", "unpack_int4",
]  # fmt: skip
