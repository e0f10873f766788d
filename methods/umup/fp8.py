"""FP8 by a plain cast, without per-tensor scales (sec. 4.5).

Inputs and weights of matrix products become E4M3, output gradients E5M2. Embedding and readout
stay as they are; the products whose inputs grow in training (attention output, feed-forward down)
take their input in E5M2.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

if TYPE_CHECKING:
    from ritornello.methods.umup.modules import Projection

CRITICAL = ("attention.output", "feed_forward.down")
READOUT = ("readout", "lm_head")


@dataclass(frozen=True)
class FPFormat:
    """A floating-point format without codes for infinity and NaN: the authors' simulation.

    Args:
        exponent_bits: E.
        mantissa_bits: M.

    E4M3 reaches 240 and E5M2 57344; the hardware's e4m3fn gives one exponent code to finite
    values and reaches 448: see `round_e4m3fn`.
    """

    exponent_bits: int
    mantissa_bits: int

    @property
    def max(self) -> float:
        """Largest value; larger ones saturate."""
        return 2.0 ** (2 ** (self.exponent_bits - 1) - 1) * (2 - 2.0**-self.mantissa_bits)

    @property
    def min_exponent(self) -> int:
        """Of the lowest binade, below which the spacing is constant: one lower than in IEEE 754."""
        return 1 - 2 ** (self.exponent_bits - 1)

    def quantize(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The nearest values of the format, ties towards zero, in the dtype of `x`."""
        magnitude = x.abs().clamp(max=self.max)
        # frexp: |x| = m 2^e with m in [1/2, 1); values in a binade are 2^(e - 1 - M) apart.
        _, exponent = torch.frexp(magnitude)
        exponent = (exponent - 1).clamp_min(self.min_exponent) - self.mantissa_bits
        step = torch.ldexp(torch.ones_like(x), exponent)
        steps = magnitude / step
        below = steps.floor()
        return torch.copysign((below + (steps - below > 0.5)) * step, x)


E4M3 = FPFormat(4, 3)
E5M2 = FPFormat(5, 2)


def round_e4m3fn(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Nearest torch.float8_e4m3fn value, saturating at 448, in the dtype of `x`."""
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)


def round_e5m2(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Nearest torch.float8_e5m2 value, saturating at 57344, in the dtype of `x`."""
    return x.clamp(-57344, 57344).to(torch.float8_e5m2).to(x.dtype)


Rounding = Callable[[Tensor], Tensor]


class _Round(torch.autograd.Function):
    """Rounds the value, the gradient, or neither; either passes straight through the other way."""

    @staticmethod
    def forward(ctx, x: Tensor, forward: Rounding | None, backward: Rounding | None) -> Tensor:
        ctx.backward_rounding = backward
        return x.view_as(x) if forward is None else forward(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad if ctx.backward_rounding is None else ctx.backward_rounding(grad), None, None


class _ScaledProduct(torch.autograd.Function):
    """The three products of a linear layer in FP8 units, multipliers as their output scales."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, scales: tuple[float, float, float]) -> Tensor:
        flat = _to_fp8(x.reshape(-1, x.shape[-1]), torch.float8_e4m3fn)
        low = _to_fp8(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(flat, low)
        ctx.scales, ctx.shape = scales, x.shape
        out = _product(flat, low.t(), scales[0], x.dtype)
        return out.view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        flat, weight = ctx.saved_tensors
        low = _to_fp8(grad.reshape(-1, grad.shape[-1]), torch.float8_e5m2)
        # The second operand has to be column-major.
        grad_x = _product(low, weight.t().contiguous().t(), ctx.scales[1], grad.dtype)
        rows = flat.t().contiguous().t()
        grad_weight = _product(low.t().contiguous(), rows, ctx.scales[2], grad.dtype)
        return grad_x.view(ctx.shape), grad_weight, None


def _to_fp8(x: Tensor, dtype: torch.dtype) -> Tensor:
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype).contiguous()


def _product(left: Tensor, right: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    one = torch.ones((), device=left.device)
    return torch._scaled_mm(left, right, scale_a=one * scale, scale_b=one, out_dtype=dtype)


@dataclass(frozen=True)
class Fp8Cast:
    """FP8 matrix products, simulated by rounding or run by the hardware's FP8 units.

    Args:
        operand: rounding of inputs and weights.
        gradient: rounding of output gradients, and of the inputs of `critical` products.
        critical: ends of names of modules whose input is rounded by `gradient`.
        exclude: ends of names of modules left alone.
        hardware: multiply with `torch._scaled_mm` in e4m3fn and e5m2 (Hopper and later; sizes must
            be multiples of 16 there). The units take no two E5M2 operands, so critical products
            stay in the input's precision.
    """

    operand: Rounding = round_e4m3fn
    gradient: Rounding = round_e5m2
    critical: tuple[str, ...] = CRITICAL
    exclude: tuple[str, ...] = READOUT
    hardware: bool = False

    def attach(self, model: nn.Module) -> list[str]:
        """Casts in every `Projection` of `model` but the excluded; gives their names."""
        from ritornello.methods.umup.modules import Projection

        names = []
        for name, module in model.named_modules():
            if isinstance(module, Projection) and not name.endswith(self.exclude):
                module.cast = self
                module.critical = name.endswith(self.critical)
                names.append(name)
        return names

    def __call__(self, module: "Projection", x: Tensor) -> Tensor:
        """The module's product with rounded operands; the output gradient is rounded too."""
        if self.hardware and module.critical:
            return module.project(x, module.weight)
        if self.hardware:
            scales = module.multipliers(x.numel() // x.shape[-1])
            return _ScaledProduct.apply(x, module.weight, scales)
        rounded = _Round.apply(x, self.gradient if module.critical else self.operand, None)
        weight = _Round.apply(module.weight, self.operand, None)
        return _Round.apply(module.project(rounded, weight), None, self.gradient)


def detach_casts(model: nn.Module) -> None:
    """Removes every cast that `Fp8Cast.attach` set."""
    from ritornello.methods.umup.modules import Projection

    for module in model.modules():
        if isinstance(module, Projection):
            module.cast = None


def flushed_fraction(tensors: Iterable[Tensor], rounding: Rounding = round_e5m2) -> float:
    """Share of non-zero elements that a rounding turns into zero."""
    lost = total = 0
    for tensor in tensors:
        nonzero = tensor != 0
        total += int(nonzero.sum())
        lost += int((nonzero & (rounding(tensor) == 0)).sum())
    return lost / max(total, 1)
