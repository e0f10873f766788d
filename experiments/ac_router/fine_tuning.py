"""Text classification by a pre-trained language model: a copy and a linear head for each set."""

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from ritornello.common.data.batches import epoch_rows
from ritornello.common.data.tables import TABLE_FORMATS, read_table
from ritornello.common.errors import UserError
from ritornello.common.runs import Measurement
from ritornello.experiments.ac_router.corpus import Vocabulary
from ritornello.methods.ac_router.language_model import MoELanguageModel

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class TextSet:
    """A set of labelled texts and how long it is trained on.

    Attributes:
        source: hub id, or a folder with a .parquet, .jsonl, .csv or .tsv file per split, the
            split's name in the file's or its folder's.
        text, label: names of the columns; a label is a number or a name.
        train, test: names of the splits.
        revision: of the hub's set.
        epochs: passes through the training split.
        learning_rate: of Adam, constant.
    """

    source: str
    text: str = "text"
    label: str = "label"
    train: str = "train"
    test: str = "test"
    revision: str | None = None
    epochs: int = 5
    learning_rate: float = 1e-4

    def load(self, split: str) -> list[tuple[str, str]]:
        """(text, label) of every row of a split.

        Raises:
            UserError: the set cannot be had, has no such split or columns, or a row has no text.
        """
        table = _table(self.source, split, self.revision)
        missing = [name for name in (self.text, self.label) if name not in table.columns]
        if missing or table.empty:
            raise UserError(
                f"source={self.source}: {split} must have rows with the columns {self.text!r} and "
                f"{self.label!r}, it has {len(table)} rows of {list(table.columns)}"
            )
        texts = [str(text).strip() for text in table[self.text]]
        if "" in texts:
            raise UserError(f"source={self.source}: row {texts.index('')} of {split} has no text")
        return list(zip(texts, map(str, table[self.label]), strict=True))


def _table(source: str, split: str, revision: str | None) -> "pd.DataFrame":
    import pandas as pd

    from ritornello.common.models.hub import hub_snapshot

    folder = hub_snapshot(source, repo_type="dataset", revision=revision)
    for suffix in TABLE_FORMATS:
        files = [
            file
            for file in sorted(folder.rglob(f"*{suffix}"))
            if split in re.split(r"[^a-z0-9]+", str(file.relative_to(folder)).lower())
        ]
        if files:
            return pd.concat(map(read_table, files), ignore_index=True)
    formats = " or ".join(TABLE_FORMATS)
    raise UserError(f"source={source} holds no {formats} file of the split {split}")


def _numbered(texts: TextSet) -> tuple[list, list, dict[str, int]]:
    """Rows of both splits, and the numbers of the classes, which are those of the training texts.

    Raises:
        UserError: as `TextSet.load`, or a test text has a label of its own.
    """
    training, test = texts.load(texts.train), texts.load(texts.test)
    numbers = {label: n for n, label in enumerate(sorted({label for _, label in training}))}
    if unknown := sorted({label for _, label in test} - numbers.keys()):
        raise UserError(
            f"source={texts.source}: no text of {texts.train} has the label {unknown[0]!r} "
            f"of {texts.test}"
        )
    return training, test, numbers


def spaced(text: str) -> str:
    """Punctuation apart from the words, as WikiText has it: `I can't.` becomes `I can 't .`."""
    return re.sub(r"([^\w\s'])", r" \1 ", re.sub(r"\s*'", " '", text))


class Labelled(NamedTuple):
    """Encoded texts and their classes."""

    tokens: list[Int[Tensor, "length"]]
    labels: Int[Tensor, "texts"]

    def batch(self, rows: Int[Tensor, "b"]) -> tuple[Tensor, Tensor, Tensor]:
        """Right-padded tokens (b, m), which of them are text (b, m) bool, and classes (b,)."""
        chosen = [self.tokens[int(row)] for row in rows]
        mask = pad_sequence(
            [torch.ones_like(t, dtype=torch.bool) for t in chosen], batch_first=True
        )
        return pad_sequence(chosen, batch_first=True), mask, self.labels[rows]


class TextClassifier(nn.Module):
    """A copy of a language model whose head scores classes, read off at a text's last token."""

    def __init__(self, model: MoELanguageModel, classes: int) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        old = model.head
        self.model.head = nn.Linear(old.in_features, classes).to(old.weight)

    def forward(
        self, tokens: Int[Tensor, "b m"], mask: Bool[Tensor, "b m"]
    ) -> Float[Tensor, "b classes"]:
        """Logits of the classes; padding is neither attended to nor part of any statistics."""
        logits = self.model(tokens, token_mask=mask).logits
        return logits[torch.arange(len(tokens), device=mask.device), mask.sum(1) - 1]


@dataclass
class FineTuning:
    """Fine-tunes on every set, each time from the same pre-trained weights.

    Attributes:
        sets: by name.
        batch_size: texts per optimiser step; an epoch leaves out what is left over.
        max_tokens: longer texts are cut.
    """

    sets: dict[str, TextSet]
    batch_size: int = 16
    max_tokens: int = 512

    def prepare(self) -> None:
        """Fetches the sets, and compares their splits' labels."""
        for texts in self.sets.values():
            _numbered(texts)

    def measure(
        self,
        model: MoELanguageModel,
        vocabulary: Vocabulary,
        train: Callable[..., object],
        *,
        seed: int,
        scratch: Path,
    ) -> Iterator[Measurement]:
        """Yields the test accuracy of every set.

        Args:
            model: the pre-trained model, which stays as it is.
            vocabulary: that of the pre-training.
            train: `fit` with all that the sets have in common.
            seed: of the heads and of the order of texts.
            scratch: for checkpoints, a folder per set.
        """
        from ritornello.experiments.ac_router.training import Training

        for name, texts in self.sets.items():
            training, test, classes = self._encoded(texts, vocabulary)
            torch.manual_seed(seed)
            classifier = TextClassifier(model, classes).train()
            steps = max(len(training.labels) // self.batch_size, 1) * texts.epochs
            train(
                Training(
                    classifier, _loss, steps=steps, learning_rate=texts.learning_rate, grow=False
                ),
                self._reader(training, seed),
                steps=steps,
                scratch=scratch / name,
            )
            classifier = classifier.to(model.positions.device).eval()
            right = self._hits(classifier, test)
            yield Measurement(
                "fine_tuned_accuracy",
                sum(right) / len(right),
                samples=right,
                coordinates={"task": name},
            )

    def _encoded(self, texts: TextSet, vocabulary: Vocabulary) -> tuple[Labelled, Labelled, int]:
        """Training and test texts, and the number of classes."""
        training, test, numbers = _numbered(texts)
        as_words = vocabulary.words is not None

        def encode(rows: list[tuple[str, str]]) -> Labelled:
            tokens = [
                vocabulary.encode(spaced(text) if as_words else text)[: self.max_tokens]
                for text, _ in rows
            ]
            return Labelled(tokens, torch.tensor([numbers[label] for _, label in rows]))

        return encode(training), encode(test), len(numbers)

    def _reader(
        self, training: Labelled, seed: int
    ) -> Callable[[int], tuple[Tensor, Tensor, Tensor]]:
        count = len(training.labels)
        return lambda number: training.batch(epoch_rows(count, self.batch_size, number, seed))

    @torch.no_grad()
    def _hits(self, classifier: TextClassifier, test: Labelled) -> list[float]:
        """1 for every test text that is classified rightly, else 0."""
        device = classifier.model.positions.device
        hits: list[float] = []
        for rows in torch.arange(len(test.labels)).split(self.batch_size):
            tokens, mask, labels = (x.to(device) for x in test.batch(rows))
            hits += (classifier(tokens, mask).argmax(1) == labels).float().tolist()
        return hits


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Float[Tensor, ""]:
    tokens, mask, labels = batch
    return functional.cross_entropy(model(tokens, mask), labels)
