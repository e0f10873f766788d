"""Test frames, clean and corrupted, and what a model makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ritornello.common.data.speech.filterbank import LogFilterbank
from ritornello.common.data.speech.mixing import AudioMixer
from ritornello.common.data.speech.mouth import bare_phoneme, viseme_class
from ritornello.methods.cav2vec import AVBatch, AVHubertModel, CAV2vecForPreTraining
from ritornello.methods.cav2vec.batch_order import new_generator
from ritornello.methods.cav2vec.corruption import VideoCorruptor
from ritornello.methods.cav2vec.data import (
    Clips,
    audio_features,
    centre_crop,
    corrupt_clip,
    normalize_video,
)

_BATCH = 25


class Frames(NamedTuple):
    """All frames of a set in a row: corrupted and clean hidden states, targets, flags, sounds."""

    corrupted: Tensor
    clean: Tensor
    video_only: Tensor
    flags: Tensor
    video_flags: Tensor
    clip: Tensor
    phonemes: list[str]


@dataclass
class ProbeSet:
    """Clips corrupted once and for all, so that every model is asked the same."""

    batches: list[tuple[AVBatch, list[int]]]
    phonemes: list[list[str]]

    @classmethod
    def make(
        cls,
        clips: Clips,
        indices: Sequence[int],
        mixer: AudioMixer,
        corruptor: VideoCorruptor,
        image_size: int,
        seed: int,
    ) -> "ProbeSet":
        """Corrupts the chosen clips as in training."""
        filterbank, batches, phonemes = LogFilterbank(), [], []
        for first in range(0, len(indices), _BATCH):
            chosen = indices[first : first + _BATCH]
            picked = [clips[i] for i in chosen]
            disturbed = [
                corrupt_clip(clip, mixer, corruptor, new_generator(seed, 5, i))
                for clip, i in zip(picked, chosen, strict=True)
            ]
            lengths = [len(clip.frames) for clip in picked]
            longest = max(lengths)
            sounds = [m.waveform for m, _ in disturbed] + [c.waveform for c in picked]
            audio = audio_features(sounds, lengths * 2, filterbank)
            video = torch.zeros(2 * len(picked), 1, longest, image_size, image_size)
            pictures = [p.frames for _, p in disturbed] + [c.frames for c in picked]
            for row, frames in zip(video, pictures, strict=True):
                cropped = np.ascontiguousarray(centre_crop(frames, image_size))
                row[0, : len(cropped)] = normalize_video(torch.from_numpy(cropped))
            flags = torch.zeros(2, len(picked), longest, dtype=torch.bool)
            for place, pair in enumerate(disturbed):
                for kind in (0, 1):
                    flags[kind, place, : lengths[place]] = torch.from_numpy(pair[kind].flags)
            padding = torch.arange(longest) >= torch.tensor(lengths)[:, None]
            size = len(picked)
            batch = AVBatch(
                audio[:size], video[:size], audio[size:], video[size:], *flags, None, padding
            )
            batches.append((batch, lengths))
            phonemes += [clip.frame_phonemes() if clip.phonemes else [] for clip in picked]
        return cls(batches, phonemes)

    @torch.no_grad()
    def frames(self, model: CAV2vecForPreTraining) -> Frames:
        """Hidden states of every real frame."""
        model.eval()
        device = next(model.parameters()).device
        columns: dict[str, list[Tensor]] = {name: [] for name in Frames._fields[:-1]}
        seen = 0
        for on_cpu, lengths in self.batches:
            batch = on_cpu.to(device)
            padding = batch.padding_mask
            assert padding is not None
            keep = ~padding
            inputs = {
                "corrupted": (batch.audio, batch.video),
                "clean": (batch.clean_audio, batch.clean_video),
                "video_only": (None, batch.video),
            }
            for name, (audio, video) in inputs.items():
                output = AVHubertModel.forward(model, audio, video, padding)
                columns[name].append(output.last_hidden_state[keep].cpu())
            columns["flags"].append((batch.audio_corrupted | batch.video_corrupted)[keep].cpu())
            columns["video_flags"].append(batch.video_corrupted[keep].cpu())
            clip = torch.arange(seen, seen + len(lengths))
            columns["clip"].append(clip.repeat_interleave(torch.tensor(lengths)))
            seen += len(lengths)
        phonemes = [name for clip in self.phonemes for name in clip]
        return Frames(*(torch.cat(columns[name]) for name in Frames._fields[:-1]), phonemes)

    @torch.no_grad()
    def audio_targets(self, model: CAV2vecForPreTraining) -> Tensor:
        """The teacher's target of the clean sound alone, for every real frame."""
        model.eval()
        if model.teacher is None:
            model.reset_teacher()
        device = next(model.parameters()).device
        rows = []
        for on_cpu, _ in self.batches:
            batch = on_cpu.to(device)
            assert batch.padding_mask is not None
            rows.append(model.targets(batch, ("audio",))["audio"][~batch.padding_mask].cpu())
        return torch.cat(rows)

    @torch.no_grad()
    def predicted_audio(self, model: CAV2vecForPreTraining, frames: Frames) -> Tensor:
        """What the head of audio corrupted prediction makes of the corrupted picture alone."""
        return model.final_pred_proj_uasp(frames.video_only)


def phoneme_classes(*sets: Frames) -> tuple[list[Tensor], list[str]]:
    """Class numbers of every set's phonemes (without stress marks), and the classes' names."""
    names = sorted({bare_phoneme(p) for frames in sets for p in frames.phonemes})
    number = {name: i for i, name in enumerate(names)}
    return [torch.tensor([number[bare_phoneme(p)] for p in f.phonemes]) for f in sets], names


def viseme_classes(*sets: Frames) -> tuple[list[Tensor], list[str]]:
    """The same for visemes."""
    names = sorted({viseme_class(p) for frames in sets for p in frames.phonemes})
    number = {name: i for i, name in enumerate(names)}
    return [torch.tensor([number[viseme_class(p)] for p in f.phonemes]) for f in sets], names
