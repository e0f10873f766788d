"""What is quantised, to how many bits, and how activations are smoothed."""

from dataclasses import dataclass, field, fields
from typing import Literal, get_args, get_origin

import torch
from torch import Tensor

from ritornello.common.finite import all_finite


@dataclass(frozen=True)
class RRSConfig:
    """One row of the paper's tables: RTN, GPTQ, SmoothQuant, RS, rotation only (QuaRot) or RRS.

    The defaults are RRS under A4W4KV16 as the official code runs it.

    Args:
        w_bits: bits of the weights, 2 to 8, or 16 to leave them as they are.
        a_bits: bits of the activations entering q, k, v, o, gate, up and down; likewise.
        k_bits: bits of the keys, after the position embedding.
        v_bits: bits of the values, one scale a token over all heads.
        rotate: rotate the residual stream, the values, the MLP's inner state (and the keys).
        rotate_mode: "hadamard" wants Hadamard matrices for every rotated width; "random" rotates
            the residual stream by a random orthogonal matrix and uses block-diagonal Hadamard
            matrices where a width has none.
        smooth: "runtime" divides by scales found at run time (RS); "static" moves scales into the
            weights beforehand (SmoothQuant).
        group_size: sorted channels that share a run-time scale; 1 exists in simulation only.
        targets: inputs that are smoothed at run time. "official" leaves q, k and v out.
        scale_stat: "absmax" (the paper) or "token_normalised" (ours: each token is divided by its
            own maximum first, so that a spike no longer dictates the scales).
        weight_method: "gptq" or "rtn" (round to nearest).
        w_clip: search a clipping of the weight range per output channel.
        w_group_size: input channels that share a weight scale; None for one scale a row.
        a_clip_ratio: fraction of a token's largest magnitude that is represented.
        decode: "online" finds scales in every forward; "reuse" keeps those of the prefill while a
            cache is being continued.
        seed: seed of the random signs or the random orthogonal matrix.
        k_group: one key scale per "head" of a token, or per "token" over all heads.
        center_embeddings: subtract each embedding row's mean before rotating, as QuaRot does; for
            RMSNorm models it changes the function slightly.
        static_alpha: share of the difficulty that SmoothQuant moves into the weights.
        execution: "simulate" multiplies de-quantised values; "integer" multiplies integers.

    Raises:
        ValueError: a value is outside what is accepted.
    """

    w_bits: int = 4
    a_bits: int = 4
    k_bits: int = 16
    v_bits: int = 16
    rotate: bool = True
    rotate_mode: Literal["hadamard", "random"] = "hadamard"
    smooth: Literal["none", "runtime", "static"] = "runtime"
    group_size: int = 128
    targets: Literal["official", "all"] = "official"
    scale_stat: Literal["absmax", "token_normalised"] = "absmax"
    weight_method: Literal["gptq", "rtn"] = "gptq"
    w_clip: bool = True
    w_group_size: int | None = None
    a_clip_ratio: float = 1.0
    decode: Literal["online", "reuse"] = "online"
    seed: int = 0
    k_group: Literal["head", "token"] = field(default="head", kw_only=True)
    center_embeddings: bool = field(default=False, kw_only=True)
    static_alpha: float = field(default=0.5, kw_only=True)
    execution: Literal["simulate", "integer"] = field(default="simulate", kw_only=True)

    def __post_init__(self) -> None:
        for name in ("w_bits", "a_bits", "k_bits", "v_bits"):
            check_bits(name, getattr(self, name), also_16=True)
        for option in fields(self):
            value = getattr(self, option.name)
            if get_origin(option.type) is Literal and value not in get_args(option.type):
                accepted = ", ".join(map(repr, get_args(option.type)))
                raise ValueError(f"{option.name} must be one of {accepted}; got {value!r}")
        if self.group_size < 1:
            raise ValueError(f"group_size must be at least 1, got {self.group_size}")
        if self.w_group_size is not None and self.w_group_size < 1:
            raise ValueError(f"w_group_size must be at least 1 or None, got {self.w_group_size}")
        if not 0 < self.a_clip_ratio <= 1:
            raise ValueError(f"a_clip_ratio must be in (0, 1], got {self.a_clip_ratio}")
        if not 0 <= self.static_alpha <= 1:
            raise ValueError(f"static_alpha must be in [0, 1], got {self.static_alpha}")
        if self.execution == "integer":
            self._check_integer_execution()

    def _check_integer_execution(self) -> None:
        if self.w_bits == 16 or self.a_bits == 16:
            raise ValueError(
                "execution='integer' multiplies integers: w_bits and a_bits must be in 2..8, got "
                f"w_bits={self.w_bits}, a_bits={self.a_bits}"
            )
        if self.smooth == "runtime" and self.group_size == 1:
            raise ValueError(
                "group_size=1 exists in execution='simulate' only: a scale of every channel cannot "
                "be taken out of an integer sum; accepted: 2 or more"
            )
        if self.w_group_size is not None:
            raise ValueError(
                f"w_group_size={self.w_group_size} needs execution='simulate': sorting the "
                "channels breaks up groups of weights"
            )

    @property
    def needs_calibration(self) -> bool:
        """Whether `quantize_model` must be given text."""
        return self.smooth == "static" or (self.weight_method == "gptq" and self.w_bits < 16)


def check_finite(name: str, values: Tensor) -> None:
    """Raises ValueError where a value is NaN or infinite; compiled graphs are not checked."""
    if not torch.compiler.is_compiling() and not all_finite(values):
        raise ValueError(f"{name} must be finite, got NaN or infinity")


def check_bits(name: str, bits: int, *, also_16: bool = False) -> None:
    """Raises ValueError unless `bits` is 2 to 8 (or 16, meaning not quantised)."""
    if bits not in range(2, 9) and not (also_16 and bits == 16):
        raise ValueError(f"{name} must be in 2..8{' or 16' if also_16 else ''}, got {bits}")
