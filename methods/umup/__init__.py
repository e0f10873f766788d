"""u-muP, the Unit-Scaled Maximal Update Parametrization (Blake et al., ICLR 2025)."""

from ritornello.methods.umup import functional
from ritornello.methods.umup.baselines import SP, MuP
from ritornello.methods.umup.fp8 import Fp8Cast
from ritornello.methods.umup.model import DecoderLM
from ritornello.methods.umup.optim import SGD, Adam, AdamW, param_groups
from ritornello.methods.umup.parameter import Parameter
from ritornello.methods.umup.parametrization import DecoderConfig, UMuP

__all__ = [
    "SGD", "SP", "Adam", "AdamW", "DecoderConfig", "DecoderLM", "Fp8Cast", "MuP",
    "Parameter", "UMuP", "functional", "param_groups",
]  # fmt: skip
