"""Texts as token ids: bytes, byte-pair tokens of a vocabulary trained on the text, or a file."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ritornello.common.cache import cached_directory
from ritornello.common.errors import UserError

BYTES = 256
Source = str | np.ndarray


class Corpus:
    """Token ids, the last tenth held out.

    Args:
        source: a text, or token ids that may lie in a memory-mapped file.
        tokens: length of a window.
        vocabulary: number of tokens; 256 reads a text as bytes.

    Raises:
        UserError: for a text too short for one window.
    """

    def __init__(self, source: Source, tokens: int, vocabulary: int = BYTES) -> None:
        if isinstance(source, str):
            source = byte_ids(source) if vocabulary == BYTES else bpe_ids(source, vocabulary)
        cut = len(source) * 9 // 10
        self.train, self.validation, self.tokens = source[:cut], source[cut:], tokens
        if len(self.validation) <= tokens + 1:
            raise UserError(f"the text has {len(source)} tokens, too few for windows of {tokens}")

    def batch(self, seed: int, step: int, windows: int) -> Int[Tensor, "windows tokens+1"]:
        """Training windows of a step, a function of seed and step alone."""
        generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
        starts = torch.randint(len(self.train) - self.tokens - 1, (windows,), generator=generator)
        return self._windows(self.train, starts)

    def held_out(self, windows: int) -> Int[Tensor, "windows tokens+1"]:
        """The same evenly spaced held-out windows for everyone."""
        starts = torch.linspace(0, len(self.validation) - self.tokens - 1, windows).long()
        return self._windows(self.validation, starts)

    def _windows(self, ids: np.ndarray, starts: Tensor) -> Int[Tensor, "windows tokens+1"]:
        places = starts[:, None].numpy() + np.arange(self.tokens + 1)
        return torch.from_numpy(ids[places].astype(np.int64))


def byte_ids(text: str) -> np.ndarray:
    """The text's bytes."""
    return np.frombuffer(text.encode(), dtype=np.uint8)


def bpe_ids(text: str, vocabulary: int) -> np.ndarray:
    """The text in byte-pair tokens trained on it; kept in the cache, where they are made once."""
    digest = hashlib.sha256(f"{vocabulary}\n{text}".encode()).hexdigest()[:16]

    def build(folder: Path) -> None:
        from tokenizers import ByteLevelBPETokenizer

        lines = text.split("\n")
        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(lines, vocab_size=vocabulary, show_progress=False)
        tokenizer.save(str(folder / "tokenizer.json"))
        np.save(folder / "ids.npy", _encode(lines, folder / "tokenizer.json"))

    return token_file(str(cached_directory(f"umup-tokens/{digest}", build) / "ids.npy"))


def token_file(path: str) -> np.ndarray:
    """Token ids of an `.npy` file, which stays on disk.

    Raises:
        UserError: there is no such file.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(
            f"path={path} must be an .npy file of token ids: write one with "
            "ritornello.experiments.umup.corpus.write_tokens(files, tokenizer, path)"
        )
    return np.load(file, mmap_mode="r")


def write_tokens(files: Iterable[str | Path], tokenizer: str | Path, path: str | Path) -> None:
    """Tokenises JSON-lines files with a "text" field, as SlimPajama's are once unpacked.

    Args:
        files: `.jsonl` files.
        tokenizer: a `tokenizer.json`.
        path: the `.npy` file to write.
    """

    def documents() -> Iterator[str]:
        for file in files:
            with Path(file).open(encoding="utf-8") as lines:
                for line in lines:
                    yield json.loads(line)["text"]

    np.save(path, _encode(documents(), tokenizer))


def _encode(texts: Iterable[str], tokenizer: str | Path, at_once: int = 10_000) -> np.ndarray:
    from tokenizers import Tokenizer

    coder = Tokenizer.from_file(str(tokenizer))
    kind = np.uint16 if coder.get_vocab_size() <= 2**16 else np.uint32
    pieces, waiting = [np.empty(0, kind)], []

    def flush() -> None:
        for coded in coder.encode_batch(waiting):
            pieces.append(np.array(coded.ids, kind))
        waiting.clear()

    for text in texts:
        waiting.append(text)
        if len(waiting) == at_once:
            flush()
    flush()
    return np.concatenate(pieces)


def wikitext103(split: str = "train", path: str | None = None) -> str:
    """WikiText-103 as one text: a local file or folder, or the hub set `Salesforce/wikitext`.

    Raises:
        UserError: no such file, or no network.
    """
    from ritornello.common.data.text import wikitext

    return wikitext("wikitext-103-raw-v1", split, path)
