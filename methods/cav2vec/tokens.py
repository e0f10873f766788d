"""Tokens of the recognisers, with fairseq's four specials in front."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ritornello.common.optional import require

BOS, PAD, EOS, UNKNOWN = 0, 1, 2, 3
_SPECIALS = 4


class Tokenizer(Protocol):
    """Text to tokens and back."""

    def __len__(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...


class WordTokenizer:
    """One token a word of a closed vocabulary."""

    def __init__(self, words: Sequence[str]) -> None:
        if not words:
            raise ValueError(f"words must hold at least one word, got {words!r}")
        self._words = list(dict.fromkeys(words))
        self._ids = {word: _SPECIALS + i for i, word in enumerate(self._words)}

    def __len__(self) -> int:
        return _SPECIALS + len(self._words)

    def encode(self, text: str) -> list[int]:
        """Tokens of a sentence; unknown words become `UNKNOWN`."""
        return [self._ids.get(word, UNKNOWN) for word in text.lower().split()]

    def decode(self, tokens: Sequence[int]) -> str:
        """Words of tokens; specials are left out."""
        return " ".join(self._words[t - _SPECIALS] for t in tokens if t >= _SPECIALS)


class SubwordTokenizer:
    """A SentencePiece model (unigram, 1000 pieces, lower case in the paper).

    Piece number i of the model (whose own specials are its first three) is token ``i + 1``.
    """

    def __init__(self, model_file: str | Path) -> None:
        sentencepiece = require("sentencepiece", extra="assets")
        if not Path(model_file).exists():
            raise ValueError(
                f"model_file must be a SentencePiece model, no such file: {model_file}"
            )
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"model_file must be a SentencePiece model, got another file: {model_file}"
            ) from error

    def __len__(self) -> int:
        return self._model.get_piece_size() + 1

    def encode(self, text: str) -> list[int]:
        """Tokens of a sentence."""
        pieces = self._model.encode(text.lower())
        return [piece + 1 if piece >= _SPECIALS - 1 else UNKNOWN for piece in pieces]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, sub-words joined to words."""
        return self._model.decode([int(t) - 1 for t in tokens if t >= _SPECIALS])
