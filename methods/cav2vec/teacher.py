"""The teacher: a moving average of the transformer, and the targets it sets (sec. 3.2)."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

TargetNorm = Literal["instance", "layer", "batch", "group", "none"]
_EPS = 1e-5


def _instance_norm(
    x: Float[Tensor, "batch time dim"], padding_mask: Bool[Tensor, "batch time"] | None
) -> Float[Tensor, "batch time dim"]:
    if padding_mask is None:
        return F.instance_norm(x.transpose(1, 2)).transpose(1, 2) if x.shape[1] > 1 else x * 0
    valid = (~padding_mask)[..., None].to(x.dtype)
    count = valid.sum(1, keepdim=True).clamp(min=1)
    mean = (x * valid).sum(1, keepdim=True) / count
    variance = ((x - mean).square() * valid).sum(1, keepdim=True) / count
    return (x - mean) / (variance + _EPS).sqrt()


def _normalise(x: Tensor, norm: TargetNorm, padding_mask: Tensor | None) -> Tensor:
    if norm == "instance":
        return _instance_norm(x, padding_mask)
    if norm == "layer":
        return F.layer_norm(x, x.shape[-1:])
    if norm == "batch":
        flat = x.flatten(0, 1)
        return F.batch_norm(flat, None, None, training=True).view_as(x) if len(flat) > 1 else x * 0
    if norm == "group":
        time_first = x.transpose(0, 1)
        return F.layer_norm(time_first, time_first.shape[1:]).transpose(0, 1)
    return x


def distillation_targets(
    hidden_ffn: Sequence[Float[Tensor, "batch time dim"]],
    top_k: int = 8,
    norm: TargetNorm = "instance",
    *,
    output_norm: TargetNorm = "none",
    padding_mask: Bool[Tensor, "batch time"] | None = None,
) -> Float[Tensor, "batch time dim"]:
    """Mean of the last `top_k` normalised layer outputs, in float32.

    Args:
        hidden_ffn: feed-forward outputs before their residual, first layer first.
        top_k: layers averaged, K.
        norm: of each layer before the mean; ``instance`` is over time, per clip and channel,
            ``group`` over clips and channels, per time, as the official option of that name.
        output_norm: of the mean.
        padding_mask: keeps padded frames out of the statistics over time; without it they count,
            as in the official code.

    Raises:
        ValueError: an unknown norm, or another number of layers than there are.
    """
    for name, value in (("norm", norm), ("output_norm", output_norm)):
        if value not in get_args(TargetNorm):
            raise ValueError(f"{name} must be one of {get_args(TargetNorm)}, got {value!r}")
    if not 1 <= top_k <= len(hidden_ffn):
        raise ValueError(f"top_k must lie in [1, {len(hidden_ffn)}] layers, got {top_k}")
    layers = [_normalise(x.float(), norm, padding_mask) for x in hidden_ffn[-top_k:]]
    return _normalise(torch.stack(layers).mean(0), output_norm, padding_mask)


class EMATeacher(nn.Module):
    """A float32 copy of a module that follows it slowly.

    Args:
        module: what is followed; copied at construction.
        decay: decay at the first and at the last step; linear in between, constant after.
        total_steps: steps of the schedule.
        copy: beginnings of parameter names that are copied at every step instead.

    Raises:
        ValueError: no step, or a decay outside [0, 1].
    """

    def __init__(
        self,
        module: nn.Module,
        decay: tuple[float, float] = (0.999, 0.9999),
        total_steps: int = 60_000,
        copy: Sequence[str] = ("pos_conv",),
    ) -> None:
        super().__init__()
        if total_steps < 1 or not all(0 <= d <= 1 for d in decay):
            raise ValueError(
                f"total_steps must be at least 1 and decay in [0, 1], got {total_steps} and {decay}"
            )
        self.module = deepcopy(module).float().requires_grad_(False).eval()
        self.decay, self.total_steps, self.copy_names = decay, total_steps, tuple(copy)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def train(self, mode: bool = True) -> "EMATeacher":
        """Stays in eval mode: no dropout, no skipped layers."""
        return super().train(False)

    def decay_at(self, step: int) -> float:
        """Decay used by the `step`-th update (from 1)."""
        start, end = self.decay
        return start + (end - start) * min(step / self.total_steps, 1.0)

    def _pairs(self, student: nn.Module) -> Iterator[tuple[str, Tensor, Tensor]]:
        own = dict(self.module.named_parameters())
        for name, parameter in student.named_parameters():
            yield name, own[name], parameter

    @torch.no_grad()
    def update(self, student: nn.Module) -> None:
        """One step towards the student; call it after every optimiser step."""
        self.steps += 1
        decay = self.decay_at(int(self.steps))
        followers, leaders = [], []
        for name, own, parameter in self._pairs(student):
            if name.startswith(self.copy_names):
                own.copy_(parameter)
            else:
                followers.append(own)
                leaders.append(parameter.detach().to(own))
        torch._foreach_mul_(followers, decay)
        torch._foreach_add_(followers, leaders, alpha=1 - decay)
        for own, buffer in zip(self.module.buffers(), student.buffers(), strict=True):
            own.copy_(buffer)

    targets = staticmethod(distillation_targets)

    def forward(self, *arguments: Tensor, **keywords: Tensor) -> object:
        """The followed module's forward, without gradients."""
        with torch.no_grad():
            return self.module(*arguments, **keywords)
