"""What a block's channels usually do: calibrated means, then a moving average (section 3)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ritornello.methods.probe_pruning.config import Fusion, Score

# Keeps the importance weights finite where probe and history are both zero.
_EPSILON = 1e-6
# Added to the number of present samples of a padded batch.
_PAD_EPSILON = 1e-3


def fuse_states(
    probe: Float[Tensor, "positions channels"],
    history: Float[Tensor, "positions channels"],
    fusion: Fusion = "importance",
    weight: float = 0.5,
) -> Float[Tensor, "positions channels"]:
    """Fuses mean squares of the probe with the history at the same positions, element by element.

    Args:
        probe: p, mean squares over the probe's samples.
        history: h, the history at the probe's positions.
        fusion: `importance`: w p + (1 - w) h with w = p / (p + h + 1e-6); `fixed`: the given
            weight; `none`: p.
        weight: of the probe, for `fixed`.

    Raises:
        ValueError: the shapes differ or the fusion is unknown.
    """
    if fusion == "none":
        return probe
    if probe.shape != history.shape:
        raise ValueError(
            f"probe and history must have one shape, got {tuple(probe.shape)} "
            f"and {tuple(history.shape)}"
        )
    if fusion == "fixed":
        return torch.lerp(history, probe, weight)
    if fusion != "importance":
        raise ValueError(f"fusion must be one of importance, fixed, none, got {fusion!r}")
    return torch.lerp(history, probe, probe / (probe + history + _EPSILON))


def mean_squares(
    states: Float[Tensor, "batch tokens channels"],
    present: Bool[Tensor, "batch tokens"] | None = None,
    *,
    center: bool = False,
) -> Float[Tensor, "tokens channels"]:
    """Mean over samples of u^2, or of (u - mean of the channel)^2 for fluctuations; float32.

    Pads (`present` false) do not count. One sample after another, so that no second tensor of the
    size of `states` is made.
    """
    total = torch.zeros(states.shape[1:], device=states.device)
    middle = _channel_means(states, present) if center else None
    for number, sample in enumerate(states):
        sample = sample.float() if middle is None else sample - middle
        if present is not None:
            sample = sample.masked_fill(~present[number][:, None], 0)
        total.addcmul_(sample, sample)
    if present is None:
        return total.div_(len(states))
    return total.div_(present.sum(0)[:, None] + _PAD_EPSILON)


def _channel_means(states: Tensor, present: Tensor | None) -> Float[Tensor, " channels"]:
    if present is None:
        return states.float().mean((0, 1))
    total = (states.float() * present[..., None]).sum((0, 1))
    return total / present.sum().clamp(min=1)


@dataclass
class BlockHistory:
    """Statistics of one block's inner states u, by position and channel; float32.

    Attributes:
        energy: v, running mean over samples of u^2.
        mean: b, running mean of u; only where FLAP needs it.
        fluctuation: f, mean square about the channel's mean; only where FLAP needs it.
        samples: how many samples were seen in calibration.
    """

    energy: Float[Tensor, "positions channels"]
    mean: Float[Tensor, "positions channels"] | None = None
    fluctuation: Float[Tensor, "positions channels"] | None = None
    samples: int = 0

    @classmethod
    def zeros(cls, states: Tensor, *, flap: bool, legacy_flap: bool) -> "BlockHistory":
        """An empty history for states of (batch, positions, channels)."""
        shape = states.shape[1:]

        def empty() -> Tensor:
            return torch.zeros(shape, device=states.device)

        return cls(empty(), empty() if flap else None, empty() if legacy_flap else None)

    def accumulate(self, states: Float[Tensor, "batch positions channels"]) -> None:
        """One batch of calibration: v = v n/(n+B) + sum_b u^2 / (n+B), likewise b."""
        if states.shape[1:] != self.energy.shape:
            raise ValueError(
                f"calibration batches must share one length, got {states.shape[1]} tokens "
                f"after {len(self.energy)}"
            )
        states = states.float()
        batch, total = len(states), self.samples + len(states)
        keep = self.samples / total
        self.energy.mul_(keep).add_(states.square().sum(0), alpha=1 / total)
        if self.mean is not None:
            before = self.mean.mean(0)
            legacy = batch if self.fluctuation is not None else 1
            self.mean.mul_(keep).add_(states.sum(0), alpha=1 / (total * legacy))
            if self.fluctuation is not None and self.samples:
                product = ((states - self.mean.mean(0)) * (states - before)).sum(0)
                self.fluctuation.mul_((self.samples - 1) / (total - 1)).add_(product / total)
        self.samples = total

    def finish(self) -> None:
        """Ends calibration: f = v - 2 m b + m^2 with m_c the mean of b over positions."""
        if self.mean is not None and self.fluctuation is None:
            center = self.mean.mean(0)
            exact = self.energy - 2 * center * self.mean + center.square()
            self.fluctuation = exact.clamp_(min=0)

    def statistic(self, score: Score) -> Float[Tensor, "positions channels"]:
        """What a score reads: fluctuations for FLAP, energies for the others."""
        if score != "flap":
            return self.energy
        if self.fluctuation is None:
            raise ValueError("this history has no fluctuations: calibrate with score='flap'")
        return self.fluctuation

    def update(
        self,
        fresh: Float[Tensor, "tokens kept"],
        kept: Int[Tensor, " kept"],
        *,
        score: Score,
        momentum: float,
    ) -> None:
        """Moving average on the kept channels and the first positions; the others have no news."""
        window = self.statistic(score)[: len(fresh)]
        window.index_copy_(1, kept, torch.lerp(fresh, window.index_select(1, kept), momentum))

    def to(self, device: torch.device) -> "BlockHistory":
        """The same history on another device."""
        if self.energy.device == device:
            return self
        moved = [t if t is None else t.to(device) for t in (self.mean, self.fluctuation)]
        return BlockHistory(self.energy.to(device), *moved, samples=self.samples)
