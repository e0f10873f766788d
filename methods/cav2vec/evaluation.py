"""How much corruption moves a representation, and what it costs in recognition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ritornello.common.data.speech.mixing import AudioMixer
from ritornello.common.evaluation.wer import word_errors
from ritornello.methods.cav2vec.corruption import VideoCorruptor
from ritornello.methods.cav2vec.data import Clips, LabelledBatches
from ritornello.methods.cav2vec.finetuning import AVForCTC, AVForSpeechSeq2Seq
from ritornello.methods.cav2vec.tokens import Tokenizer

if TYPE_CHECKING:
    import pandas as pd


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


def corruption_grid(
    model: AVForCTC | AVForSpeechSeq2Seq,
    dataset: Clips,
    grid: Sequence[Condition],
    tokenizer: Tokenizer | None = None,
    *,
    batch_size: int = 25,
    seed: int = 0,
    decoding: Mapping[str, Any] | None = None,
) -> "pd.DataFrame":
    """Word error rates under every condition; the same clips get the same noise in every call.

    Args:
        model: a fine-tuned recogniser.
        dataset: the test set.
        grid: the conditions.
        tokenizer: of the model; its own when absent.
        batch_size: clips at a time.
        seed: of the corruption.
        decoding: arguments of the model's `generate`.

    Returns:
        One row a condition: its name (`condition`), the word error rate of the whole set in percent
        (`wer`), and lists with an entry a clip: word `errors`, reference `words`, `hypotheses`.

    Raises:
        ValueError: no tokenizer, or references without a word.
    """
    import pandas as pd

    device, text_of = next(model.parameters()).device, model.tokenizer_or(tokenizer)
    model.eval()
    rows = []
    for condition in grid:
        batches = LabelledBatches(
            dataset,
            text_of,
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
            hypotheses += [text_of.decode(tokens) for tokens in decoded]
            references += texts
        found = word_errors(hypotheses, references)
        rows.append((condition.name, found.rate, found.errors, found.reference_words, hypotheses))
    return pd.DataFrame(rows, columns=["condition", "wer", "errors", "words", "hypotheses"])
