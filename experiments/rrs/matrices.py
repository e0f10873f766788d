"""Part A: activations with known outliers, and the error that each quantiser makes on them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ritornello.common.runs import Cell, CellContext, Experiment, Measurement
from ritornello.methods.rrs import RRSConfig
from ritornello.methods.rrs.baselines import static_scale
from ritornello.methods.rrs.linear import ActivationQuantizer, fake_quantize, find_scale
from ritornello.methods.rrs.rotation import StreamRotation


@dataclass
class Outliers:
    """What is added to Gaussian activations of unit variance.

    Attributes:
        offset: four channels get a constant between `offset` and 3 `offset`, one sign each, in all
            tokens alike.
        scaled: four channels are multiplied by a factor between `scaled` and 3 `scaled`.
        spike_tokens: tokens with huge values.
        spike_channels: channels of such a token that are huge, the same in all of them.
        spike: their magnitude; signs are random.
    """

    offset: float = 0.0
    scaled: float = 0.0
    spike_tokens: int = 0
    spike_channels: int = 1
    spike: float = 1000.0

    def draw(
        self, tokens: int, channels: int, generator: torch.Generator
    ) -> Float[Tensor, "tokens channels"]:
        """Activations with these outliers."""
        x = torch.randn(tokens, channels, generator=generator)
        places = torch.randperm(channels, generator=generator)
        large, spiky = places[:4], places[4 : 4 + self.spike_channels]
        factor = 1 + 2 * torch.rand(4, generator=generator)
        sign = torch.randint(0, 2, (4,), generator=generator) * 2 - 1
        if self.offset:
            x[:, large] += self.offset * factor * sign
        if self.scaled:
            x[:, large] *= self.scaled * factor
        when = torch.randperm(tokens, generator=generator)[: self.spike_tokens]
        signs = torch.randint(0, 2, (self.spike_tokens, self.spike_channels), generator=generator)
        x[when[:, None], spiky] = self.spike * (signs * 2.0 - 1)
        return x


@dataclass
class OutlierMatrices(Experiment):
    """Relative output error of a linear layer whose activations are rounded and weights are exact.

    Attributes:
        data: outliers by name.
        group_sizes: measure each of these instead of the arm's own.
        tokens, channels, outputs: sizes.
    """

    data: dict[str, Outliers]
    group_sizes: list[int] | None = None
    tokens: int = 512
    channels: int = 512
    outputs: int = 512

    def measure(self, arm: RRSConfig, cell: Cell, context: CellContext) -> Iterator[Measurement]:
        for name, outliers in self.data.items():
            generator = torch.Generator().manual_seed(cell.seed)
            x = outliers.draw(self.tokens, self.channels, generator)
            weight = torch.randn(self.outputs, self.channels, generator=generator)
            where = {"data": name, "spike_tokens": outliers.spike_tokens}
            for size in self.group_sizes or [arm.group_size]:
                config = replace(arm, group_size=size)
                error = relative_error(x, weight, config)
                place = where | ({"group_size": size} if self.group_sizes else {})
                yield Measurement("relative_error", error, coordinates=place)


def relative_error(
    x: Float[Tensor, "tokens channels"], weight: Float[Tensor, "out channels"], config: RRSConfig
) -> float:
    """Median over the tokens of |error|^2 / |output without its mean over the tokens|^2."""
    exact = x @ weight.T
    rounded, matching = _round(x, weight, config)
    error = (rounded @ matching.T - exact).square().sum(1)
    energy = (exact - exact.mean(0)).square().sum(1)
    return (error / energy).median().item()


def _round(x: Tensor, weight: Tensor, config: RRSConfig) -> tuple[Tensor, Tensor]:
    """(activations as represented, weights that go with them)."""
    if config.smooth == "static":
        scale = static_scale(x.abs().amax(0), [weight], config.static_alpha)
        x, weight = x / scale, weight * scale
    if config.rotate:
        turn = StreamRotation(x.shape[1], config.rotate_mode, config.seed)
        x, weight = turn(x).float(), turn(weight).float()
    stat = config.scale_stat if config.smooth == "runtime" else None
    quantizer = ActivationQuantizer(config.a_bits, config.a_clip_ratio, stat, config.group_size)
    rows = x[None]
    return fake_quantize(rows, find_scale(rows, quantizer, None), quantizer)[0], weight
