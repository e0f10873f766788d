"""From filterbanks and mouth crops to one feature vector per 25 Hz frame and modality (sec. 3)."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

VIDEO_MEAN, VIDEO_STD = 0.421, 0.165  # of grey mouth crops on [0, 1]


class GradientScale(torch.autograd.Function):
    """The identity whose gradient is multiplied by a constant; the value is not touched."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        """The value as it is."""
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient times the constant."""
        return gradient * ctx.scale, None


class BasicBlock(nn.Module):
    """ResNet-18 block with a per-channel PReLU."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.PReLU(channels)
        self.relu2 = nn.PReLU(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d i j"]:
        """Two convolutions and the shortcut."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(x)) + shortcut)


class ResNetTrunk(nn.Module):
    """Stages of two blocks; every stage but the first halves the picture."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        before = widths[0]
        self.num_stages = len(widths)
        for stage, width in enumerate(widths, start=1):
            first = BasicBlock(before, width, 1 if stage == 1 else 2)
            setattr(self, f"layer{stage}", nn.Sequential(first, BasicBlock(width, width, 1)))
            before = width

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        """Pictures (n, c, h, w) to vectors (n, d): the mean of the last stage over its places."""
        for stage in range(1, self.num_stages + 1):
            if stage == self.num_stages and x.device.type == "cpu":
                x = x.contiguous()  # on pictures of 3 × 3 a CPU is faster without channels last
            x = getattr(self, f"layer{stage}")(x)
        return x.mean(dim=(2, 3))


class LipResNet(nn.Module):
    """A convolution over time and space, then ResNet-18 on every frame."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.frontend3D = nn.Sequential(
            nn.Conv3d(1, widths[0], (5, 7, 7), (1, 2, 2), (2, 3, 3), bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.PReLU(widths[0]),
            nn.MaxPool2d(3, 2, 1),
        )
        self.trunk = ResNetTrunk(widths)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Conv3d)):
                fan_out = module.out_channels * module.weight[0, 0].numel()
                nn.init.normal_(module.weight, std=(2 / fan_out) ** 0.5)

    def stem(
        self,
        video: Float[Tensor, "batch 1 time height width"],
        present: Bool[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "n c h w"]:
        """The convolution over five frames, as a 2-D one on five stacked frames.

        The same sums as the 3-D convolution: with one input channel and a time stride of 1, the
        five neighbouring frames are the channels of a picture. 2-D kernels are the faster ones.

        Args:
            video: mouth crops.
            present: the frames wanted, all of them when absent.

        Returns:
            One picture for each wanted frame, clip after clip.
        """
        convolution = self.frontend3D[0]
        assert isinstance(convolution, nn.Conv3d)
        padded = F.pad(video[:, 0], (0, 0, 0, 0, 2, 2))
        windows = padded.unfold(1, 5, 1)
        windows = windows.flatten(0, 1) if present is None else windows[present]
        # Channels last in memory, as the kernels like it.
        stacked = windows.contiguous().permute(0, 3, 1, 2)
        weight = convolution.weight[:, 0].to(stacked.dtype)
        return F.conv2d(stacked, weight, convolution.bias, stride=2, padding=3)

    def forward(
        self,
        video: Float[Tensor, "batch 1 time height width"],
        padding_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time dim"]:
        """Features of every frame; those of padded ones are zeros, and cost nothing."""
        present = None if padding_mask is None else ~padding_mask
        x = self.stem(video, present)
        for module in self.frontend3D[1:]:
            x = module(x)
        x = self.trunk(x)
        if present is None:
            return x.unflatten(0, (video.shape[0], video.shape[2]))
        features = x.new_zeros(*present.shape, x.shape[-1])
        features[present] = x
        return features


class AudioFrontend(nn.Module):
    """One linear layer on stacked filterbanks."""

    def __init__(self, audio_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(audio_dim, embed_dim)

    def forward(
        self, audio: Float[Tensor, "batch channels time"]
    ) -> Float[Tensor, "batch time dim"]:
        """One vector for each stacked frame."""
        return self.proj(audio.transpose(1, 2))


class VideoFrontend(nn.Module):
    """`LipResNet` and one linear layer."""

    def __init__(self, widths: tuple[int, ...], embed_dim: int) -> None:
        super().__init__()
        self.resnet = LipResNet(widths)
        self.proj = nn.Linear(widths[-1], embed_dim)

    def forward(
        self,
        video: Float[Tensor, "batch 1 time height width"],
        padding_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time dim"]:
        """Features of every frame.

        Args:
            video: normalised mouth crops.
            padding_mask: True at padding, whose pictures, zeros, then cost nothing. In training
                batch norm counts them, as in the official code.
        """
        return self.proj(self.resnet(video, None if self.training else padding_mask))
