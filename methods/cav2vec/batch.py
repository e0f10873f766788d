"""What a recogniser reads: labelled clips of speech."""

from typing import NamedTuple

import torch
from torch import Tensor


class SpeechBatch(NamedTuple):
    """Labelled clips: audio (B, 104, T), video (B, 1, T, H, W), padding (B, T), tokens (B, L)."""

    audio: Tensor | None
    video: Tensor | None
    padding_mask: Tensor | None
    tokens: Tensor | None = None
    token_lengths: Tensor | None = None

    def to(self, device: torch.device | str) -> "SpeechBatch":
        """The batch on another device."""
        return SpeechBatch(*(x if x is None else x.to(device) for x in self))
