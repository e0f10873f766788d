"""Bimodal Trifeatures: pairs of pictures with shared, unique and synergistic labels (sec. 4.1)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils.data import Dataset

from ritornello.common.data.trifeature import TrifeatureRenderer, Trifeatures, trifeatures

Stimulus = tuple[str, int, int, int]
TASKS = ("share", "unique1", "unique2", "synergy")


def bijection_of(seed: int = 42) -> Int[np.ndarray, "10"]:
    """The colour that goes with each texture in the synergy label."""
    return np.random.default_rng(seed).permutation(10)


def listed_pairs(
    stimuli: Sequence[Stimulus],
    *,
    biased: bool,
    seed: int = 42,
    max_pairs: int = 10_000,
) -> Int[np.ndarray, "pairs 2"]:
    """Indices of pairs that share their shape, drawn without replacement.

    Args:
        stimuli: (name, shape, texture, colour) of every picture.
        biased: only pairs whose texture and colour correspond: synergy holds in all of them.
        seed: of the bijection and of the draw.
    """
    rng = np.random.default_rng(seed)
    colour_of = rng.permutation(10)
    shape, texture, colour = np.array([s[1:] for s in stimuli]).T
    allowed = shape[:, None] == shape[None, :]
    if biased:
        allowed &= colour_of[texture][:, None] == colour[None, :]
    first, second = np.nonzero(allowed)
    drawn = rng.choice(len(first), size=min(max_pairs, len(first)), replace=False)
    return np.stack([first[drawn], second[drawn]], axis=1)


class BimodalTrifeatures(Dataset):
    """Pairs of pictures of one shape; texture and colour of the two are independent.

    Labels: `share` is the shape, `unique1` and `unique2` the texture of either picture, `synergy`
    whether the texture of the first corresponds to the colour of the second.

    Args:
        split: `train` (10 000 pairs of 2400 pictures) or `test` (all 4094 pairs of 200).
        biased: synergy holds in every pair: for training without labels, never for probing.
        renderer: size of pictures; 224 pixels when None.
        pictures: rendered before; made when None.
        seed: of split, pictures, bijection and pairs.
        max_pairs: pairs drawn.
    """

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        *,
        biased: bool = False,
        renderer: TrifeatureRenderer | None = None,
        pictures: Trifeatures | None = None,
        seed: int = 42,
        max_pairs: int = 10_000,
    ) -> None:
        self.pictures = pictures or trifeatures(split, renderer=renderer, seed=seed)
        p = self.pictures
        stimuli = list(zip(p.names, p.shape, p.texture, p.colour, strict=True))
        self.pairs = torch.from_numpy(
            listed_pairs(stimuli, biased=biased, seed=seed, max_pairs=max_pairs)
        )
        self.images = torch.from_numpy(p.images).permute(0, 3, 1, 2).contiguous()
        first, second = self.pairs.numpy().T
        synergy: Bool[np.ndarray, " pairs"] = (
            bijection_of(seed)[p.texture[first]] == p.colour[second]
        )
        values = (p.shape[first], p.texture[first], p.texture[second], synergy.astype(np.int64))
        self.labels = {t: torch.from_numpy(v) for t, v in zip(TASKS, values, strict=True)}

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Two uint8 pictures (3, size, size), and the labels."""
        inputs = [self.images[i] for i in self.pairs[index]]
        return inputs, {task: label[index] for task, label in self.labels.items()}

    def batch(self, rows: Int[Tensor, " rows"]) -> list[Tensor]:
        """The two modalities of several pairs, float in [0, 1], (rows, 3, size, size)."""
        return [self.images[self.pairs[rows, m]].float() / 255 for m in (0, 1)]
