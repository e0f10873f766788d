"""u-muP, the Unit-Scaled Maximal Update Parametrization (Blake et al., ICLR 2025)."""

from typing import TYPE_CHECKING, Any

from ritornello.methods.umup import functional
from ritornello.methods.umup.baselines import SP, MuP
from ritornello.methods.umup.convert import unit_scale
from ritornello.methods.umup.fp8 import Fp8Cast
from ritornello.methods.umup.model import Attention, DecoderLM, SwiGLU, UmupTransformer
from ritornello.methods.umup.modules import (
    Conv1d,
    DepthModuleList,
    DepthSequential,
    Embedding,
    LayerNorm,
    Linear,
    LinearReadout,
    RMSNorm,
)
from ritornello.methods.umup.optim import SGD, Adam, AdamW, param_groups
from ritornello.methods.umup.parameter import Parameter
from ritornello.methods.umup.parametrization import DecoderConfig, Parametrization, UMuP
from ritornello.methods.umup.sweep import independent_search, random_search, transfer_error
from ritornello.methods.umup.track import ScaleTracker, coordinate_check

if TYPE_CHECKING:
    from ritornello.methods.umup.hf import UmupLlamaForCausalLM

__all__ = [
    "SGD", "SP", "Adam", "AdamW", "Attention", "Conv1d", "DecoderConfig", "DecoderLM",
    "DepthModuleList", "DepthSequential", "Embedding", "Fp8Cast", "LayerNorm", "Linear",
    "LinearReadout", "MuP", "Parameter", "Parametrization", "RMSNorm", "ScaleTracker", "SwiGLU",
    "UMuP", "UmupLlamaForCausalLM", "UmupTransformer", "coordinate_check", "functional",
    "independent_search", "param_groups", "random_search", "transfer_error", "unit_scale",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The Llama is imported when it is asked for: transformers costs more than torch."""
    if name != "UmupLlamaForCausalLM":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ritornello.methods.umup.hf import UmupLlamaForCausalLM

    return UmupLlamaForCausalLM
