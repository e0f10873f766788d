"""The equations as slow, obvious loops: what the fast paths are tested against."""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


def log_filterbank(samples: np.ndarray) -> np.ndarray:
    """Log mel filterbank of int16 samples at 16 kHz, frame by frame and filter by filter."""
    x = samples.astype(np.float64)
    emphasised = np.concatenate([x[:1], x[1:] - 0.97 * x[:-1]])
    frames = 1 if len(x) <= 400 else 1 + math.ceil((len(x) - 400) / 160)

    def to_mel(hertz: float) -> float:
        return 2595 * math.log10(1 + hertz / 700)

    corners = []
    for k in range(28):
        mel = to_mel(8000) * k / 27
        corners.append(math.floor(513 * 700 * (10 ** (mel / 2595) - 1) / 16_000))
    rows = []
    for t in range(frames):
        window = emphasised[160 * t : 160 * t + 400]
        power = np.abs(np.fft.rfft(window, 512)) ** 2 / 512
        row = []
        for left, centre, right in zip(corners, corners[1:], corners[2:], strict=False):
            total = 0.0
            for i in range(left, centre):
                total += power[i] * (i - left) / (centre - left)
            for i in range(centre, right):
                total += power[i] * (right - i) / (right - centre)
            row.append(math.log(total if total > 0 else np.finfo(float).eps))
        rows.append(row)
    return np.array(rows)


def instance_norm(x: Float[Tensor, "time dim"]) -> Float[Tensor, "time dim"]:
    """Each channel of one clip to mean 0 and variance 1 over time."""
    columns = [(c - c.mean()) / (c.var(unbiased=False) + 1e-5).sqrt() for c in x.T]
    return torch.stack(columns, dim=1)


def regression(
    hidden: Float[Tensor, "batch time dim"],
    head: nn.Linear,
    target: Float[Tensor, "batch time dim"],
    frames: Bool[Tensor, "batch time"],
) -> Tensor:
    """Σ ‖P x − y‖² / √D over the chosen frames, one frame at a time."""
    total = hidden.new_zeros(())
    for b in range(hidden.shape[0]):
        for t in range(hidden.shape[1]):
            if frames[b, t]:
                total = total + (head(hidden[b, t]) - target[b, t]).square().sum()
    return total / math.sqrt(hidden.shape[2])


def masked_language_model(
    hidden: Float[Tensor, "batch time dim"],
    head: nn.Linear,
    classes: Float[Tensor, "classes dim"],
    labels: Tensor,
    frames: Bool[Tensor, "batch time"],
    temperature: float = 0.1,
) -> Tensor:
    """Cross-entropy of cosines over the temperature, summed over the chosen frames."""
    total = hidden.new_zeros(())
    for b in range(hidden.shape[0]):
        for t in range(hidden.shape[1]):
            if frames[b, t]:
                z = head(hidden[b, t])
                cosines = torch.stack([torch.dot(z, c) / (z.norm() * c.norm()) for c in classes])
                logits = cosines / temperature
                total = total + torch.logsumexp(logits, 0) - logits[labels[b, t]]
    return total


def stem(video: Tensor, convolution: nn.Conv3d) -> Tensor:
    """The first layer as the 3-D convolution it is, (batch, channels, time, height, width)."""
    return convolution(video)
