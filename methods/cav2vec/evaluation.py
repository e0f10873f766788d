"""How much corruption moves a representation, and what it costs in recognition."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ritornello.common.data.speech.mixing import AudioMixer
from ritornello.common.evaluation.wer import WordErrors, word_errors
from ritornello.methods.cav2vec.corruption import VideoCorruptor
from ritornello.methods.cav2vec.data import Clips, LabelledBatches
from ritornello.methods.cav2vec.finetuning import AVForCTC, AVForSpeechSeq2Seq
from ritornello.methods.cav2vec.tokens import Tokenizer


def dispersion(
    corrupted: Float[Tensor, "frames dim"], clean: Float[Tensor, "frames dim"]
) -> Float[Tensor, " frames"]:
    """‖h(corrupt) − h(clean)‖ over ‖h(clean) − mean‖, for every frame."""
    spread = (clean - clean.mean(0)).norm(dim=-1).clamp(min=1e-8)
    return (corrupted - clean).norm(dim=-1) / spread


def cosine_distance(
    corrupted: Float[Tensor, "frames dim"], clean: Float[Tensor, "frames dim"]
) -> Float[Tensor, " frames"]:
    """1 − cos of the two, after the mean of the clean frames is taken off both."""
    centre = clean.mean(0)
    return 1 - F.cosine_similarity(corrupted - centre, clean - centre, dim=-1)


def explained_variance(
    predicted: Float[Tensor, "frames dim"], target: Float[Tensor, "frames dim"]
) -> float:
    """R² over all channels: 1 − residual over variance around the channel means."""
    residual = (predicted - target).square().sum()
    return float(1 - residual / (target - target.mean(0)).square().sum())


def ridge_prediction(
    train_input: Float[Tensor, "n dim"],
    train_target: Float[Tensor, "n out"],
    test_input: Float[Tensor, "m dim"],
    *,
    penalty: float = 1.0,
) -> Float[Tensor, "m out"]:
    """Linear probe with an intercept and a squared penalty per (standardised) weight."""
    mean, std = train_input.mean(0), train_input.std(0).clamp(min=1e-6)
    x = ((train_input - mean) / std).double()
    y_mean = train_target.mean(0)
    y = (train_target - y_mean).double()
    gram = x.T @ x + penalty * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    weight = torch.linalg.solve(gram, x.T @ y)
    return (((test_input - mean) / std).double() @ weight).to(y_mean) + y_mean


class FrameClassification(NamedTuple):
    """Accuracy of a linear probe on each group of test frames."""

    everywhere: float
    flagged: float


def probe_accuracy(
    train_input: Float[Tensor, "n dim"],
    train_classes: Tensor,
    test_input: Float[Tensor, "m dim"],
    test_classes: Tensor,
    flags: Bool[Tensor, " m"],
) -> FrameClassification:
    """Frame classification by ridge regression on one-hot classes."""
    count = int(max(train_classes.max(), test_classes.max())) + 1
    scores = ridge_prediction(train_input, F.one_hot(train_classes, count).float(), test_input)
    hit = (scores.argmax(-1) == test_classes).float()
    return FrameClassification(float(hit.mean()), float(hit[flags].mean()))


@dataclass(frozen=True)
class Condition:
    """One cell of the corruption grid.

    Args:
        name: what tables call it.
        mixer: disturbs the sound; None: clean.
        corruptor: disturbs the picture; None: clean.
    """

    name: str
    mixer: AudioMixer | None = None
    corruptor: VideoCorruptor | None = None


class ConditionResult(NamedTuple):
    """Word errors of one cell, utterance by utterance, and what was recognised."""

    condition: str
    errors: WordErrors
    hypotheses: list[str]


def corruption_grid(
    model: AVForCTC | AVForSpeechSeq2Seq,
    clips: Clips,
    grid: Sequence[Condition],
    tokenizer: Tokenizer,
    *,
    batch_size: int = 25,
    seed: int = 0,
    decoding: Mapping[str, Any] | None = None,
) -> Iterator[ConditionResult]:
    """Word error rates under every condition; the same clips get the same noise in every call.

    Args:
        model: a fine-tuned recogniser.
        clips: the test set.
        grid: the conditions.
        tokenizer: of the model.
        batch_size: clips at a time.
        seed: of the corruption.
        decoding: arguments of the model's `generate`.
    """
    device = next(model.parameters()).device
    model.eval()
    for condition in grid:
        batches = LabelledBatches(
            clips,
            tokenizer,
            condition.mixer,
            condition.corruptor,
            model.config.encoder.image_size,
            batch_size,
            augment=False,
            seed=seed,
        )
        hypotheses, references = [], []
        for batch, texts in batches.in_order():
            decoded = model.generate(batch.to(device), **(decoding or {}))
            hypotheses += [tokenizer.decode(tokens) for tokens in decoded]
            references += texts
        yield ConditionResult(condition.name, word_errors(hypotheses, references), hypotheses)


def whole_utterance_mixer(noises: Sequence[np.ndarray], snr_db: float) -> AudioMixer:
    """A mixer for tests: every utterance as a whole at one ratio."""
    return AudioMixer(noises, snr_db=snr_db, heavy_snr_db=None)
