"""Augmentations of batches: pictures as SimCLR's, vectors and sequences as MultiBench's (app. B).

They work on tensors of any device, with parameters drawn for each sample. An augmentation of
several modalities is a list of them, one a modality, drawn independently (`Augmentations`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

Images = Float[Tensor, "batch channels height width"]
_GRAY = (0.299, 0.587, 0.114)
_CACHED = 2**18  # numbers that stay in a core's cache from step to step


def _uniform(
    n: int, low: float, high: float, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    return torch.empty(n, device=like.device).uniform_(low, high, generator=generator)


@dataclass(frozen=True)
class Augmentations:
    """Applies one augmentation to each modality; None leaves a modality as it is."""

    each: Sequence[Callable[[Tensor], Tensor] | None]

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Raises ValueError for another number of modalities."""
        if len(inputs) != len(self.each):
            raise ValueError(f"inputs must be {len(self.each)} modalities, got {len(inputs)}")
        return [x if a is None else a(x) for a, x in zip(self.each, inputs, strict=True)]


@dataclass(frozen=True)
class RandomResizedCrop:
    """Crops a random share of the area at a random aspect ratio, and resizes; flips at random.

    Args:
        scale: range of the share of the area.
        ratio: range of the aspect ratio, drawn on a log scale.
        size: side of the result; that of the input when None.
        flip: probability of a horizontal flip.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    size: int | None = None
    flip: float = 0.5
    generator: torch.Generator | None = None

    def __call__(self, images: Images) -> Images:
        n, g = len(images), self.generator
        area = _uniform(n, *self.scale, images, g)
        logs = (math.log(self.ratio[0]), math.log(self.ratio[1]))
        aspect = _uniform(n, *logs, images, g).exp()
        width = (area * aspect).sqrt().clamp(max=1.0)
        height = (area / aspect).sqrt().clamp(max=1.0)
        # affine_grid counts from -1 to 1: a window of half-width w keeps its centre within ±(1-w)
        x = (1 - width) * _uniform(n, -1, 1, images, g)
        y = (1 - height) * _uniform(n, -1, 1, images, g)
        mirror = torch.where(_uniform(n, 0, 1, images, g) < self.flip, -1.0, 1.0)
        theta = torch.zeros(n, 2, 3, device=images.device)
        theta[:, 0, 0], theta[:, 0, 2] = width * mirror, x
        theta[:, 1, 1], theta[:, 1, 2] = height, y
        side = self.size or images.shape[-1]
        grid = F.affine_grid(theta, [n, images.shape[1], side, side], align_corners=False)
        dtype = torch.promote_types(images.dtype, grid.dtype)  # half precision misses pixels
        cropped = F.grid_sample(
            images.to(dtype), grid.to(dtype), padding_mode="reflection", align_corners=False
        )
        return cropped.to(images.dtype)


@dataclass(frozen=True)
class ImageAugmentation:
    """SimCLR's: crop and flip, colour jitter, grey, blur, on pictures in [0, 1].

    Args:
        crop: crop and flip.
        jitter: strengths of brightness, contrast, saturation and hue.
        jitter_rate, gray_rate, blur_rate: probabilities of each step.
        sigma: range of the blur's width in pixels.
        normalize: mean and deviation of each channel, subtracted and divided by at the end.
        generator: of everything that is drawn, the crop included; torch's own when None.
    """

    crop: RandomResizedCrop = RandomResizedCrop()
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    jitter_rate: float = 0.8
    gray_rate: float = 0.2
    blur_rate: float = 0.5
    sigma: tuple[float, float] = (0.1, 2.0)
    normalize: tuple[Sequence[float], Sequence[float]] | None = None
    generator: torch.Generator | None = None

    def __call__(self, images: Images) -> Images:
        """Raises ValueError unless the pictures are float (batch, 3, height, width)."""
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ValueError(
                "images must be float (batch, 3, height, width) in [0, 1], "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        on_cpu = images.device.type == "cpu"
        rows = max(1, _CACHED // math.prod(images.shape[1:])) if on_cpu else max(1, len(images))
        return torch.cat([self._augment(part) for part in images.split(rows)])

    def _augment(self, images: Images) -> Images:
        g = self.generator
        x = (self.crop if g is None else replace(self.crop, generator=g))(images)
        x = self._sometimes(x, self.jitter_rate, self._jitter)
        x = self._sometimes(x, self.gray_rate, lambda chosen: _gray(chosen).expand_as(chosen))
        x = self._sometimes(x, self.blur_rate, self._blur)
        if self.normalize is None:
            return x
        mean, deviation = (x.new_tensor(v)[:, None, None] for v in self.normalize)
        return (x - mean) / deviation

    def _sometimes(self, x: Images, rate: float, change: Callable[[Images], Images]) -> Images:
        chosen = (_uniform(len(x), 0, 1, x, self.generator) < rate).nonzero().squeeze(1)
        return x.index_copy(0, chosen, change(x[chosen])) if len(chosen) else x

    def _factor(self, x: Tensor, strength: float) -> Tensor:
        low = max(0.0, 1 - strength)
        factor = _uniform(len(x), low, 1 + strength, x, self.generator)
        return factor.to(x.dtype)[:, None, None, None]

    def _jitter(self, x: Images) -> Images:
        """The four changes in torchvision's sense, in a random order a batch."""
        brightness, contrast, saturation, hue = self.jitter
        device = x.device if self.generator is None else self.generator.device
        for step in torch.randperm(4, generator=self.generator, device=device).tolist():
            if step == 0:
                x = x * self._factor(x, brightness)
            elif step == 1:
                mean = _gray(x).mean(dim=(1, 2, 3), keepdim=True)
                x = torch.lerp(mean, x, self._factor(x, contrast))
            elif step == 2:
                x = torch.lerp(_gray(x), x, self._factor(x, saturation))
            else:
                x = _turn_hue(x, _uniform(len(x), -hue, hue, x, self.generator).to(x.dtype))
            x = x.clamp(0, 1)
        return x

    def _blur(self, x: Images) -> Images:
        """A Gaussian of its own width for each picture, rows then columns."""
        height, width = x.shape[2:]
        radius = min(math.ceil(2 * self.sigma[1]), (min(height, width) - 1) // 2)
        offsets = torch.arange(-radius, radius + 1, device=x.device, dtype=x.dtype)
        sigma = _uniform(len(x), *self.sigma, x, self.generator).to(x.dtype)[:, None]
        kernel = torch.softmax(-(offsets**2) / (2 * sigma**2), dim=1)[..., None, None, None]
        for dim in (-1, -2):
            pad = (radius, radius, 0, 0) if dim == -1 else (0, 0, radius, radius)
            padded, size = F.pad(x, pad, mode="reflect"), x.shape[dim]
            x = kernel[:, 0] * padded.narrow(dim, 0, size)
            for place in range(1, 2 * radius + 1):
                x = x.addcmul_(kernel[:, place], padded.narrow(dim, place, size))
        return x


def _gray(x: Images) -> Float[Tensor, "batch 1 height width"]:
    red, green, blue = x.split(1, dim=1)
    return _GRAY[0] * red + _GRAY[1] * green + _GRAY[2] * blue


def _turn_hue(x: Images, turns: Float[Tensor, " batch"]) -> Images:
    """Turns the hue of HSV by a share of the circle."""
    value, low = x.amax(dim=1), x.amin(dim=1)
    chroma = value - low
    red, green, blue = x.unbind(dim=1)
    safe = chroma.clamp(min=1e-8)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    hue = hue + 6 * turns[:, None, None]
    # channel c of HSV: value - chroma · max(0, min(k, 4 - k, 1)) with k = (n_c + hue) mod 6
    places = x.new_tensor([5.0, 3.0, 1.0])[None, :, None, None]
    k = (places + hue.unsqueeze(1)) % 6
    share = torch.minimum(k, 4 - k).clamp(0, 1)
    return value.unsqueeze(1) - chroma.unsqueeze(1) * share


@dataclass(frozen=True)
class VectorAugmentation:
    """Noise on vectors, and a share of their features set to zero.

    Args:
        noise: standard deviation.
        drop: share of the features of each sample that is dropped.
    """

    noise: float = 0.1
    drop: float = 0.2
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1 or self.noise < 0:
            raise ValueError(
                f"drop must be in [0, 1) and noise at least 0, got {self.drop} and {self.noise}"
            )

    def __call__(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        noise = torch.empty_like(x).normal_(std=self.noise or 1e-12, generator=self.generator)
        kept = torch.empty_like(x).uniform_(generator=self.generator) >= self.drop
        return (x + noise) * kept


@dataclass(frozen=True)
class SequenceAugmentation:
    """MultiBench's: noise with probability ½, and up to 80 % of the steps dropped with ½.

    Args:
        noise, noise_rate: standard deviation, and probability for a sample.
        drop, drop_rate: largest share of steps, and probability for a sample.
    """

    noise: float = 0.1
    noise_rate: float = 0.5
    drop: float = 0.8
    drop_rate: float = 0.5
    generator: torch.Generator | None = None

    def kept_steps(self, x: Float[Tensor, "batch steps features"]) -> Tensor:
        """Which steps stay, for each sample: `drop` of the paper."""
        n, steps = x.shape[:2]
        share = _uniform(n, 0, self.drop, x, self.generator)
        share = share * (_uniform(n, 0, 1, x, self.generator) < self.drop_rate)
        order = torch.empty(n, steps, device=x.device).uniform_(generator=self.generator)
        rank = order.argsort(dim=1).argsort(dim=1)
        return rank >= (share * steps).long()[:, None]

    def noisy(self, x: Float[Tensor, "batch *sizes"]) -> Tensor:
        """`noise` of the paper."""
        chosen = _uniform(len(x), 0, 1, x, self.generator) < self.noise_rate
        noise = torch.empty_like(x).normal_(std=self.noise or 1e-12, generator=self.generator)
        return x + noise * chosen.view(-1, *[1] * (x.ndim - 1))

    def __call__(
        self, x: Float[Tensor, "batch steps features"]
    ) -> Float[Tensor, "batch steps features"]:
        return self.noisy(x) * self.kept_steps(x).unsqueeze(-1)


@dataclass(frozen=True)
class AlignedSequences:
    """`multi_drop`: the same steps are dropped in all modalities, noise is independent."""

    one: SequenceAugmentation = SequenceAugmentation()

    def __call__(self, inputs: Sequence[Float[Tensor, "batch steps _"]]) -> list[Tensor]:
        """Raises ValueError for modalities of different lengths."""
        if len({x.shape[1] for x in inputs}) != 1:
            raise ValueError(
                f"inputs must have one number of steps, got {[x.shape[1] for x in inputs]}"
            )
        kept = self.one.kept_steps(inputs[0]).unsqueeze(-1)
        return [self.one.noisy(x) * kept for x in inputs]


@dataclass(frozen=True)
class TokenMasking:
    """Replaces each token id that is not special by the mask's with a probability of 0.15."""

    mask_id: int
    special_ids: Sequence[int] = ()
    rate: float = 0.15
    generator: torch.Generator | None = None

    def __call__(self, ids: Int[Tensor, "batch tokens"]) -> Int[Tensor, "batch tokens"]:
        drawn = torch.rand(ids.shape, generator=self.generator, device=ids.device) < self.rate
        special = torch.isin(ids, torch.tensor(list(self.special_ids), device=ids.device))
        return torch.where(drawn & ~special, self.mask_id, ids)
