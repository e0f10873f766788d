"""The quantised linear layer: rotate, smooth, round each token, multiply."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ritornello.common.kernels.block_gemm import block_scaled_matmul, pack_int4, unpack_int4
from ritornello.common.kernels.quantize import rotate_smooth_quantize, smooth_quantize
from ritornello.methods.rrs.config import check_finite
from ritornello.methods.rrs.input_rotation import InputRotation
from ritornello.methods.rrs.quantizers import Quantized, round_symmetric
from ritornello.methods.rrs.smoothing import GroupedScale, grouped_scale, no_smoothing


class ActivationQuantizer(NamedTuple):
    """How a layer's input is rounded.

    Args:
        bits: 2 to 8; 16 leaves it alone.
        clip: fraction of a token's largest magnitude that is represented.
        stat: statistic of Runtime Smooth, or None for no smoothing.
        group_size: sorted channels that share a smoothing scale.
        decode: see `RRSConfig.decode`.
    """

    bits: int = 4
    clip: float = 1.0
    stat: str | None = None
    group_size: int = 128
    decode: str = "online"


@dataclass
class TokenContext:
    """What a model's forward knows about its tokens and a linear layer does not see.

    Attributes:
        shape: (batch, tokens) of the forward, to undo flattening; None outside a model.
        keep: False for padding tokens; None when there is no padding.
        continuing: whether a cache holds earlier tokens of these sequences.
        prefills: how many were begun: the scales of an earlier one are no longer to be used.
    """

    shape: tuple[int, int] | None = None
    keep: Tensor | None = None
    continuing: bool = False
    prefills: int = 0


def rrs_linear(
    x: Float[Tensor, "*batch channels"],
    packed_weight: Tensor,
    w_scale: Float[Tensor, " out"],
    bias: Float[Tensor, " out"] | None = None,
    *,
    bits: int = 4,
    group_size: int = 128,
    stat: str | None = "absmax",
    clip: float = 1.0,
    keep: Bool[Tensor, "batch tokens"] | None = None,
    backend: str | None = None,
) -> Float[Tensor, "*batch out"]:
    """A linear layer on integers, smoothed at run time (sec. 3.1, the real kernel).

    Args:
        x: (batch, tokens, channels) or (tokens, channels); scales are found per sequence.
        packed_weight: uint8 (out, channels / 2) from `pack_int4`, or int8 (out, channels).
        w_scale: scale of each output channel.
        bias: added at the end.
        bits: of the activations, 2 to 8.
        group_size: sorted channels that share a smoothing scale.
        stat: "absmax", "token_normalised", or None for no smoothing.
        clip: fraction of a token's largest magnitude that is represented.
        keep: False for padding tokens, which must not set a scale.
        backend: "triton", "cpu" or "reference" for all three kernels; None for automatic.

    Returns:
        In the dtype of `x`.

    Raises:
        ValueError: shapes or values do not fit, `x` is not finite, or the backend cannot run.
    """
    if stat not in (None, "absmax", "token_normalised"):
        raise ValueError(f"stat must be 'absmax', 'token_normalised' or None, got {stat!r}")
    if x.ndim not in (2, 3):
        raise ValueError(
            f"x must be (batch, tokens, channels) or (tokens, channels), got {tuple(x.shape)}"
        )
    check_finite("x", x)
    quantizer = ActivationQuantizer(bits, clip, stat, group_size)
    rows = x if x.ndim == 3 else x[None]
    scale = find_scale(rows, quantizer, keep, backend)
    y = integer_linear(rows, packed_weight, w_scale, scale, quantizer, backend)
    y = (y if bias is None else y + bias).to(x.dtype)
    return y if x.ndim == 3 else y[0]


def integer_linear(
    x: Float[Tensor, "batch tokens channels"],
    weight: Tensor,
    weight_scale: Float[Tensor, " out"],
    scale: GroupedScale,
    quantizer: ActivationQuantizer,
    backend: str | None = None,
    *,
    rotate: bool = False,
) -> Float[Tensor, "batch tokens out"]:
    """Y[t,o] = a[t] w[o] sum_b s_b sum_{j in b} q[t,j] Wq[o,j] with given smoothing scales.

    With `rotate`, x H / sqrt(channels) is rounded, in the same kernel on a GPU.
    """
    group_size = x.shape[-1] if quantizer.stat is None else quantizer.group_size
    q, row_scale = (rotate_smooth_quantize if rotate else smooth_quantize)(
        x,
        *scale,
        group_size=group_size,
        bits=quantizer.bits,
        clip=quantizer.clip,
        backend=backend,
    )
    return block_scaled_matmul(
        q, weight, *scale, row_scale, weight_scale, group_size=group_size, backend=backend
    )


def fake_quantize(
    x: Float[Tensor, "batch tokens channels"], scale: GroupedScale, quantizer: ActivationQuantizer
) -> Float[Tensor, "batch tokens channels"]:
    """The activations as the integers represent them, smoothing undone: q * a * s."""
    if quantizer.stat is None:
        levels, step = round_symmetric(x.float(), quantizer.bits, quantizer.clip)
        return levels.mul_(step).to(x.dtype)
    channels = scale.per_channel(quantizer.group_size)
    levels, step = round_symmetric(x.float() / channels, quantizer.bits, quantizer.clip)
    return levels.mul_(step).mul_(channels).to(x.dtype)


def find_scale(
    x: Tensor, quantizer: ActivationQuantizer, keep: Tensor | None, backend: str | None = None
) -> GroupedScale:
    """The smoothing scales that a quantiser finds in `x`, (batch, tokens, channels)."""
    if quantizer.stat is None:
        return no_smoothing(x)
    return grouped_scale(x, quantizer.group_size, quantizer.stat, keep, backend)


class QuantLinear(nn.Module):
    """A linear layer with integer weights whose input is rotated, smoothed and rounded.

    Up to 4 bits the weights are stored as `weight_packed`, two to a byte, above as `weight_int8`,
    with `weight_scale` (out,) or (out, groups); at 16 bits as `weight`.

    Args:
        in_features, out_features: widths.
        weight_bits: 2 to 8, or 16.
        bias: whether there is one.
        weight_group_size: input channels that share a weight scale; None for all.
        dtype: of scales, bias and an unquantised weight.
        device: of all of them.

    Attributes:
        quantizer: how the input is rounded.
        rotation: what turns the input first, or None.
        routed: whether the input is what a router sent to an expert: tokens of all sequences, which
            then share their scales.
        output_bits: bits of the output (values of the attention); 16 leaves it alone.
        execution: "simulate" or "integer".
        context: shared by all layers of a model.
    """

    weight: Tensor
    weight_packed: Tensor
    weight_int8: Tensor
    weight_scale: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        weight_bits: int = 4,
        bias: bool = False,
        weight_group_size: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight_bits = weight_bits
        self.quantizer = ActivationQuantizer(bits=16)
        self.rotation: InputRotation | None = None
        self.routed = False
        self.output_bits = 16
        self.execution = "simulate"
        self.context = TokenContext()
        self._prefill_scale: tuple[int, GroupedScale] | None = None
        groups = 1 if weight_group_size is None else in_features // weight_group_size
        if weight_bits == 16:
            weight = torch.empty(out_features, in_features, dtype=dtype, device=device)
            self.register_buffer("weight", weight)
        elif weight_bits <= 4:
            if in_features % 2:
                raise ValueError(
                    f"in_features must be even for weights of {weight_bits} bits, which are packed "
                    f"in pairs; got {in_features}"
                )
            packed = torch.empty(out_features, in_features // 2, dtype=torch.uint8, device=device)
            self.register_buffer("weight_packed", packed)
        else:
            levels = torch.empty(out_features, in_features, dtype=torch.int8, device=device)
            self.register_buffer("weight_int8", levels)
        if weight_bits < 16:
            shape = (out_features,) if groups == 1 else (out_features, groups)
            # float32: a scale in half precision would move every weight of its row.
            self.register_buffer("weight_scale", torch.empty(shape, device=device))
        self.register_buffer(
            "bias", torch.empty(out_features, dtype=dtype, device=device) if bias else None
        )
        self.dtype = dtype
        self._unpacked: Tensor | None = None

    @classmethod
    def from_linear(cls, linear: nn.Linear, rotation: InputRotation | None) -> "QuantLinear":
        """Takes over a linear layer whose weight stays as it is for the time being."""
        layer = cls(
            linear.in_features,
            linear.out_features,
            weight_bits=16,
            bias=linear.bias is not None,
            dtype=linear.weight.dtype,
            device=linear.weight.device,
        )
        layer.weight = linear.weight.detach()
        layer.bias = None if linear.bias is None else linear.bias.detach()
        layer.rotation = rotation
        return layer

    def with_integers(self, weight: Quantized, bits: int) -> "QuantLinear":
        """The same layer with the given integer weights, on the same device."""
        groups = weight.scale.shape[-1]
        layer = QuantLinear(
            self.in_features,
            self.out_features,
            weight_bits=bits,
            bias=self.bias is not None,
            weight_group_size=None if groups == 1 else self.in_features // groups,
            dtype=self.dtype,
            device=self.weight.device,
        )
        if bits <= 4:
            layer.weight_packed = pack_int4(weight.q)
        else:
            layer.weight_int8 = weight.q
        layer.weight_scale = weight.scale.reshape(layer.weight_scale.shape).float()
        layer.bias = self.bias
        layer.take_place_of(self)
        return layer

    def take_place_of(self, other: "QuantLinear") -> None:
        """Turns its input and knows its tokens as another layer does."""
        self.rotation, self.context, self.routed = other.rotation, other.context, other.routed

    def integers(self) -> Tensor:
        """The integer weights, int8 (out, channels)."""
        return unpack_int4(self.weight_packed) if self.weight_bits <= 4 else self.weight_int8

    def dequantized_weight(self) -> Tensor:
        """The weights as numbers, in the layer's dtype."""
        if self.weight_bits == 16:
            return self.weight
        scale = self.weight_scale.view(self.out_features, -1)
        return (
            Quantized(self.integers(), scale, torch.zeros_like(scale)).dequantize().to(self.dtype)
        )

    def _apply(self, fn, recurse: bool = True):
        self._unpacked = self._prefill_scale = None
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args, **kwargs) -> None:
        self._unpacked = self._prefill_scale = None
        super()._load_from_state_dict(*args, **kwargs)

    def set_execution(self, execution: str) -> None:
        """Chooses "simulate" or "integer"."""
        if execution != self.execution:
            self.execution, self._unpacked = execution, None

    def drop_unpacked(self) -> None:
        """Forgets the form of the weight that the product takes; it is made anew when needed."""
        self._unpacked = None

    def _ready_weight(self) -> Tensor:
        """The weight in the form the product takes, kept after the first call."""
        if self._unpacked is None:
            with torch.inference_mode(mode=False):  # what is kept must serve outside of it too
                self._unpacked = self._unpack()
        return self._unpacked

    def _unpack(self) -> Tensor:
        if self.execution == "simulate":
            return self.dequantized_weight()
        if self.weight_scale.device.type == "cpu":
            # Rows are channels in memory: sorting them by scale copies whole rows.
            return self.integers().t().contiguous().t()
        return self.weight_packed if self.weight_bits <= 4 else self.weight_int8

    def forward(self, x: Float[Tensor, "*batch channels"]) -> Float[Tensor, "*batch out"]:
        """The layer's output, in the dtype of `x`."""
        if self.quantizer.bits == 16:
            weight = self._ready_weight().to(x.dtype)
            y = nn.functional.linear(self._turned(x), weight, self.bias)
        else:
            y = self._quantized_product(x)
        if self.output_bits < 16:
            levels, step = round_symmetric(y.float(), self.output_bits)
            y = (levels * step).to(y.dtype)
        return y

    def _turned(self, x: Tensor) -> Tensor:
        return x if self.rotation is None else self.rotation(x)

    def _quantized_product(self, x: Tensor) -> Tensor:
        rows, keep = self._sequences(x)
        integer = self.execution == "integer"
        scale = self._held_scale(rows)
        # Scales that are known beforehand do not need the turned input: the quantiser turns it.
        rotate = integer and scale is not None and self._rotates_whole
        if not rotate:
            rows = self._turned(rows)
        if scale is None:
            scale = find_scale(rows, self.quantizer, keep)
            if self.quantizer.decode == "reuse":
                self._prefill_scale = self.context.prefills, scale
        if not integer:
            rounded = fake_quantize(rows, scale, self.quantizer)
            y = nn.functional.linear(rounded, self._ready_weight().to(x.dtype), self.bias)
        else:
            weight = self._ready_weight()
            w_scale = self.weight_scale.float()
            y = integer_linear(rows, weight, w_scale, scale, self.quantizer, rotate=rotate)
            y = (y if self.bias is None else y + self.bias).to(x.dtype)
        return y.reshape(*x.shape[:-1], self.out_features)

    def _sequences(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(the input as (batch, tokens, channels), which tokens count)."""
        shape = self.context.shape
        if shape is not None and not self.routed and x.shape[:-1].numel() == shape[0] * shape[1]:
            return x.reshape(*shape, self.in_features), self.context.keep
        return (x.flatten(0, -3) if x.ndim > 2 else x.reshape(1, -1, self.in_features)), None

    @property
    def _rotates_whole(self) -> bool:
        return self.rotation is not None and self.rotation.is_whole(self.in_features)

    def _held_scale(self, rows: Tensor) -> GroupedScale | None:
        """The scales of the prefill that is being continued, under decode="reuse"."""
        prefill, held = self._prefill_scale or (None, None)
        # An expert may have been left out by the prefill: then it holds none, or an earlier one.
        current = self.context.continuing and prefill == self.context.prefills
        if self.quantizer.decode == "online" or held is None or not current:
            return None
        if len(held.order) != len(rows):
            raise ValueError(
                f"decode='reuse': the prefill had {len(held.order)} sequences, "
                f"this forward has {len(rows)}; accepted: the same batch, or decode='online'"
            )
        return held

    def extra_repr(self) -> str:
        """Widths and bits."""
        return (
            f"{self.in_features}, {self.out_features}, weight_bits={self.weight_bits}, "
            f"{self.quantizer}, rotation={self.rotation}, execution={self.execution}"
        )
