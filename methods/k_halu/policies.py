"""Baselines: habits with exactly known scores, and guesses from the surface of the text."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ritornello.common.chat import ScriptedClient
from ritornello.common.evaluation import Sample, Task
from ritornello.common.evaluation.baselines import Policy, Write, keyed_generator, scripted
from ritornello.methods.k_halu.binary_list import binary
from ritornello.methods.k_halu.metrics import OPTIONS

if TYPE_CHECKING:
    from torch import Tensor

Support = Callable[[Sample], Sequence[float]]


def write_list(sample: Sample, picked: Sequence[int]) -> str:
    """The reply of protocol B that picks these options."""
    return str(list(binary(picked, len(sample.choices))))


def write_spaced_list(sample: Sample, picked: Sequence[int]) -> str:
    """The same list with blanks that the official parser does not take."""
    return write_list(sample, picked).replace(", ", " , ")


def policy_client(
    task: Task, policy: Policy, name: str, *, write: Write = write_list
) -> ScriptedClient:
    """A client that answers a task of this benchmark by a policy, in protocols A and B alike."""
    return scripted(task, policy, write=write, name=name)


def by_support(support: Support) -> Policy:
    """Takes as many options as are right: the best supported ones, or where hallucinated
    statements are asked for the least supported ones. The later of equals is taken."""

    def pick(sample: Sample) -> Sequence[int]:
        sign = -1 if sample.labels["polarity"] == "hallucinated" else 1
        scores = [sign * score for score in support(sample)]
        ranked = sorted(range(len(scores)), key=lambda index: (scores[index], index))
        return sorted(ranked[-len(sample.gold) :])

    return pick


def lexical_support(sample: Sample) -> list[float]:
    """Share of an option's character bigrams that occur in the document (NFC, no blanks)."""
    document = Counter(_bigrams(sample.text))
    shares = []
    for choice in sample.choices:
        grams = Counter(_bigrams(choice.text))
        shares.append((grams & document).total() / max(1, grams.total()))
    return shares


def sentence_support(encode: "Callable[[list[str]], Tensor]") -> Support:
    """Cosine of each option with the sentence of the document that is most like it.

    Args:
        encode: sentences → unit vectors, (sentences, width).
    """

    def support(sample: Sample) -> list[float]:
        sentences = re.split(r"(?<=[.!?])\s+", sample.text)
        vectors = encode([*(choice.text for choice in sample.choices), *sentences])
        options, document = vectors[: len(sample.choices)], vectors[len(sample.choices) :]
        return (options @ document.T).max(1).values.tolist()

    return support


def single_pick(first: Policy) -> Policy:
    """Only one option of another policy: what a rule of any hit rewards."""
    return lambda sample: first(sample)[:1]


def noisy(known: float, seed: int) -> Policy:
    """Judges each option rightly with probability `known`, and picks what it judges right.

    Which options it errs on depends on the seed and the sample alone.
    """
    if not 0 <= known <= 1:
        raise ValueError(f"known must be in [0, 1], got {known}")

    def pick(sample: Sample) -> Sequence[int]:
        errs = keyed_generator(seed, sample.id).random(OPTIONS) >= known
        return [index for index in range(OPTIONS) if (index in sample.gold) != errs[index]]

    return pick


def _bigrams(text: str) -> list[str]:
    characters = re.sub(r"\s+", "", unicodedata.normalize("NFC", text))
    return [characters[i : i + 2] for i in range(len(characters) - 1)]
