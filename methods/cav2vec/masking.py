"""Which frames the student does not see (wav2vec 2.0 spans, and CAV2vec's exceptions)."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

RandomSource = np.random.Generator | np.random.RandomState


class Masks(NamedTuple):
    """Masked frames per modality, and the frame that stands in for each video frame.

    `video_source[b, t]` is the frame shown at t; -1 shows zeros.
    """

    audio: Tensor
    video: Tensor
    video_source: Tensor

    def trimmed(self, frames: int) -> "Masks":
        """The masks of a clip's first frames; a stand-in from beyond is the last of them."""
        audio, video, source = (part[:, :frames] for part in self)
        return Masks(audio, video, source.clamp(max=frames - 1))


def span_mask(
    batch: int,
    frames: int,
    probability: float,
    length: int,
    padding_mask: Bool[np.ndarray, "batch frames"] | None = None,
    *,
    generator: RandomSource,
    min_spans: int = 2,
) -> Bool[np.ndarray, "batch frames"]:
    """Masks spans of `length` frames, the same number of frames in every row.

    The number of spans is ⌊p·T/length + U(0,1)⌋, at least `min_spans`; starts are drawn without
    replacement; rows with more masked frames than the others lose some at random, so that runs may
    be ragged. Padding is never masked.

    Args:
        batch: rows B.
        frames: columns T.
        probability: share p of frames to mask, before overlaps.
        length: frames of a span.
        padding_mask: True at padding.
        generator: a NumPy generator, or a legacy `RandomState`.
        min_spans: least number of spans.

    Raises:
        ValueError: an empty batch, a length or a probability out of range.
    """
    if batch < 1 or frames < 1:
        raise ValueError(f"batch and frames must be at least 1, got {batch} and {frames}")
    if length < 1 or not 0 <= probability <= 1:
        raise ValueError(
            f"length must be at least 1 and probability in [0, 1], got {length} and {probability}"
        )

    def num_spans(size: int) -> int:
        return max(min_spans, int(probability * size / length + generator.random()))

    common = num_spans(frames)
    chosen = []
    for row in range(batch):
        size, spans = frames, common
        if padding_mask is not None:
            size = frames - int(padding_mask[row].sum())
            spans = num_spans(size)
        shortest = length if size - length > spans else size - spans - 1
        starts = generator.choice(size - shortest, spans, replace=False)
        covered = np.unique(starts[:, None] + np.arange(length))
        chosen.append(covered[covered < size])
    fewest = min(len(row) for row in chosen)
    mask = np.zeros((batch, frames), dtype=bool)
    for row, covered in enumerate(chosen):
        kept = covered
        if len(covered) > fewest:
            kept = generator.choice(covered, fewest, replace=False)
        mask[row, kept] = True
    return mask


def runs(mask: Bool[np.ndarray, "batch frames"]) -> Int[np.ndarray, "runs 3"]:
    """Maximal runs of True as rows (row, start, end), in reading order; `end` is past the run."""
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    rows, starts = np.nonzero(edges == 1)
    _, ends = np.nonzero(edges == -1)
    return np.stack([rows, starts, ends], axis=1)


def skip_corrupted_runs(
    mask: Bool[np.ndarray, "batch frames"], flags: Bool[np.ndarray, "batch frames"]
) -> Bool[np.ndarray, "batch frames"]:
    """Un-masks whole runs whose first and last frames are both corrupted (`flags`).

    Such frames are the business of the corrupted prediction, not of the masked one.
    """
    kept = np.array(mask)
    for row, start, end in runs(kept):
        if flags[row, start] and flags[row, end - 1]:
            kept[row, start:end] = False
    return kept


def substitute_sources(
    mask: Bool[np.ndarray, "batch frames"], generator: RandomSource
) -> Int[np.ndarray, "batch frames"]:
    """For every frame the frame of the same clip to show: itself, or a frame of another run.

    A masked run is replaced by one of equal length that starts outside [start − length, end),
    clipped at the clip's end; from frame 0 where there is no such start. A batch of one shows
    zeros instead: −1.
    """
    frames = mask.shape[1]
    if len(mask) == 1:
        return np.where(mask, -1, np.arange(frames))
    sources = np.tile(np.arange(frames), (len(mask), 1))
    for row, start, end in runs(mask):
        length = end - start
        outside = np.r_[0 : max(start - length, 0), end:frames]
        first = int(generator.choice(outside)) if len(outside) else 0
        sources[row, start:end] = np.minimum(first + np.arange(length), frames - 1)
    return sources


def draw_masks(
    corrupted: Bool[Tensor, "batch frames"],
    padding_mask: Bool[Tensor, "batch frames"] | None,
    *,
    generator: RandomSource,
    audio_span: tuple[float, int] = (0.8, 10),
    video_span: tuple[float, int] = (0.3, 5),
) -> Masks:
    """Masks of a training step.

    Args:
        corrupted: frames corrupted in either modality.
        padding_mask: True at padding.
        generator: a NumPy generator.
        audio_span: (probability, length) of audio spans.
        video_span: the same of video spans.
    """
    flags = corrupted.cpu().numpy()
    padding = None if padding_mask is None else padding_mask.cpu().numpy()
    batch, frames = flags.shape
    masks = [
        skip_corrupted_runs(
            span_mask(
                batch,
                frames,
                probability=probability,
                length=length,
                generator=generator,
                padding_mask=padding,
            ),
            flags,
        )
        for probability, length in (audio_span, video_span)
    ]
    sources = substitute_sources(masks[1], generator)
    device = corrupted.device
    audio, video, source = (torch.from_numpy(x).to(device) for x in (*masks, sources))
    return Masks(audio, video, source)


def mask_audio(
    audio: Tensor, mask: Bool[Tensor, "batch frames"], embedding: Tensor, *, with_zeros: bool
) -> Tensor:
    """Replaces masked frames of (batch, channels, frames) by the learned embedding, or zeros."""
    value = torch.zeros_like(embedding) if with_zeros else embedding
    return torch.where(mask[:, None, :], value.to(audio.dtype)[None, :, None], audio)


def substitute_same_sequence(
    video: Float[Tensor, "batch 1 frames height width"],
    mask: Bool[Tensor, "batch frames"],
    generator: RandomSource,
) -> Float[Tensor, "batch 1 frames height width"]:
    """Shows other frames of the same clip where `mask` is True; see `substitute_sources`."""
    sources = substitute_sources(mask.cpu().numpy(), generator)
    return mask_video(video, torch.from_numpy(sources).to(video.device))


def mask_video(video: Tensor, sources: Int[Tensor, "batch frames"]) -> Tensor:
    """Shows frame `sources[b, t]` of (batch, 1, frames, height, width) at t; zeros at -1."""
    rows = torch.arange(len(video), device=video.device)[:, None]
    shown = video[:, 0][rows, sources.clamp(min=0)]
    return (shown * (sources >= 0)[..., None, None]).unsqueeze(1)
