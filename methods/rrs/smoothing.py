"""Runtime Smooth: a scale for every channel, found from the tokens at hand."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ritornello.common.kernels.quantize import sorted_channel_scale
from ritornello.methods.rrs.config import check_finite

_SMALLEST_SCALE = 1e-5


class GroupedScale(NamedTuple):
    """Channels sorted by falling scale, and the scale of each run of `group_size` of them."""

    order: Int[Tensor, "batch channels"]
    group_scale: Float[Tensor, "batch groups"]

    def per_channel(self, group_size: int) -> Float[Tensor, "batch 1 channels"]:
        """The scale of each channel in its own place: the sort undone."""
        channels = self.order.shape[1]
        sorted_scale = self.group_scale.repeat_interleave(group_size, dim=1)[:, :channels]
        return torch.empty_like(sorted_scale).scatter_(1, self.order, sorted_scale)[:, None]


def runtime_smooth_scale(
    x: Float[Tensor, "batch tokens channels"] | Float[Tensor, "tokens channels"],
    group_size: int = 128,
    stat: Literal["absmax", "token_normalised"] = "absmax",
    keep: Bool[Tensor, "batch tokens"] | None = None,
) -> Float[Tensor, "batch 1 channels"] | Float[Tensor, "1 channels"]:
    """The scales s by which the channels of `x` are divided before it is quantised.

    s[c] is the largest |x[:, c]| over the tokens of a sequence, at least 1e-5. With a group size
    above 1, channels are sorted by s and each run of `group_size` takes its largest: these scales
    can be taken out of a product's integer sums, block by block. The last run may be shorter.

    Args:
        x: activations that enter a linear layer.
        group_size: channels that share a scale.
        stat: "absmax", or "token_normalised" to divide each token by its largest magnitude first.
        keep: False for padding tokens, which must not set a scale.

    Returns:
        float32, one row for each sequence, in the order of the channels of `x`.

    Raises:
        ValueError: wrong shape, option or group size, or a kept value that is not finite.
    """
    if x.ndim not in (2, 3):
        raise ValueError(
            f"x must be (batch, tokens, channels) or (tokens, channels), got {tuple(x.shape)}"
        )
    if group_size < 1:
        raise ValueError(f"group_size must be at least 1, got {group_size}")
    if stat not in ("absmax", "token_normalised"):
        raise ValueError(f"stat must be 'absmax' or 'token_normalised', got {stat!r}")
    scale = grouped_scale(x if x.ndim == 3 else x[None], group_size, stat, keep)
    check_finite("x", scale.group_scale)
    channels = scale.per_channel(group_size)
    return channels if x.ndim == 3 else channels[0]


def grouped_scale(
    x: Float[Tensor, "batch tokens channels"],
    group_size: int,
    stat: str,
    keep: Bool[Tensor, "batch tokens"] | None = None,
    backend: str | None = None,
) -> GroupedScale:
    """The scales in the form that kernels take; arguments as in `runtime_smooth_scale`."""
    return GroupedScale(
        *sorted_channel_scale(
            x,
            group_size,
            keep,
            normalize_tokens=stat == "token_normalised",
            smallest=_SMALLEST_SCALE,
            backend=backend,
        )
    )


def no_smoothing(x: Float[Tensor, "batch tokens channels"]) -> GroupedScale:
    """One run of all channels in their own order with scale 1."""
    batch, _, channels = x.shape
    order = torch.arange(channels, device=x.device).expand(batch, channels)
    return GroupedScale(order, torch.ones(batch, 1, device=x.device))
