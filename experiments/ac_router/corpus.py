"""Texts and vocabularies of the language-model part."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from ritornello.common.data.text import documentation_text, wikitext_rows
from ritornello.common.errors import UserError

UNKNOWN, END_OF_LINE = "<unk>", "<eos>"


class Corpus(NamedTuple):
    """Training and test text."""

    train: str
    test: str


class Vocabulary(NamedTuple):
    """Numbers of the tokens; `words` is None for bytes."""

    words: dict[str, int] | None

    @classmethod
    def of(cls, text: str, unit: str) -> "Vocabulary":
        """Bytes, or the white-space separated words of `text` by falling frequency."""
        if unit == "byte":
            return cls(None)
        if unit != "word":
            raise ValueError(f"unit must be 'byte' or 'word', got {unit!r}")
        counts = Counter(text.split())
        counts[END_OF_LINE] = text.count("\n")
        counts.pop(UNKNOWN, None)
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        return cls({word: number for number, word in enumerate([UNKNOWN, *ordered])})

    def __len__(self) -> int:
        return 256 if self.words is None else len(self.words)

    def encode(self, text: str) -> Int[Tensor, "tokens"]:
        """Token numbers; unknown words become `<unk>`, ends of lines `<eos>`."""
        if self.words is None:
            return torch.frombuffer(
                bytearray(text.encode(errors="surrogateescape")), dtype=torch.uint8
            ).long()
        words = [w for line in text.split("\n") for w in (*line.split(), END_OF_LINE)]
        return torch.tensor([self.words.get(word, 0) for word in words])


def documentation() -> Corpus:
    """Python's own documentation, its last tenth as test text."""
    text = documentation_text()
    cut = int(len(text) * 0.9)
    return Corpus(text[:cut], text[cut:])


def wikitext103(path: str | None = None) -> Corpus:
    """WikiText-103 with its word vocabulary (`<unk>` in the text).

    Args:
        path: folder with `wiki.train.tokens` and `wiki.test.tokens`, or laid out like the hub set;
            without it the hub set `Salesforce/wikitext`, `wikitext-103-v1`.
    """
    subset, splits = "wikitext-103-v1", ("train", "test")
    if path is None or (Path(path).expanduser() / subset).is_dir():
        return Corpus(*("".join(wikitext_rows(subset, split, path)) for split in splits))
    files = [Path(path).expanduser() / f"wiki.{split}.tokens" for split in splits]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise UserError(f"path={path} must hold {' and '.join(missing)}")
    return Corpus(*(file.read_text(encoding="utf-8") for file in files))


def enwik8(path: str) -> Corpus:
    """EnWik-8's first 90 and last 5 million bytes, the field's split.

    Args:
        path: the file `enwik8` of the Hutter prize, unpacked.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"path={path} must be the file enwik8 (from mattmahoney.net/dc/enwik8.zip)")
    data = file.read_bytes()
    train, test = data[: len(data) * 90 // 100], data[len(data) * 95 // 100 :]
    return Corpus(*(part.decode("utf-8", errors="surrogateescape") for part in (train, test)))


def streams(tokens: Int[Tensor, "tokens"], count: int, segment: int) -> Int[Tensor, "count length"]:
    """Cuts a text into `count` equally long texts that are read side by side.

    Raises:
        UserError: they have no segment with its next token.
    """
    length = len(tokens) // count
    if length <= segment:
        raise UserError(
            f"the text has {len(tokens)} tokens, too few for {count} streams with a segment of "
            f"{segment}"
        )
    return tokens[: count * length].view(count, length)
