"""Text: what Python itself ships, and the field's corpora by hub id or local path."""

import gzip
import json
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from ritornello.common.errors import UserError

TextWindows = Int[Tensor, "windows tokens"]


@cache
def documentation_text() -> str:
    """Python's own language documentation (English prose and code, about half a megabyte)."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


@cache
def stdlib_source_text(limit: int = 2_000_000) -> str:
    """Source of Python's standard library, files in sorted order, cut at `limit` characters."""
    pieces: list[str] = []
    total = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        if total >= limit:
            break
        piece = path.read_text(encoding="utf-8", errors="replace")
        pieces.append(piece)
        total += len(piece)
    return "\n\n".join(pieces)[:limit]


def wikitext2(
    split: Literal["train", "validation", "test"] = "test", path: str | None = None
) -> str:
    """WikiText-2 raw as one text, rows joined by a blank line.

    Args:
        split: which part.
        path: a text file, or a folder that holds `<split>.txt` or `wiki.<split>.*`, or is laid out
            like the hub set; without it the hub set `Salesforce/wikitext`, `wikitext-2-raw-v1`.

    Raises:
        UserError: no such file, or no network.
    """
    return wikitext("wikitext-2-raw-v1", split, path)


def wikitext(subset: str, split: str, path: str | None = None) -> str:
    """A part of a raw WikiText as one text, rows joined by a blank line; see `wikitext2`."""
    if split not in ("train", "validation", "test"):
        raise UserError(f"split must be train, validation or test, got {split!r}")
    if path is not None and not (Path(path).expanduser() / subset).is_dir():
        return _local_text(Path(path).expanduser(), split)
    return "\n\n".join(wikitext_rows(subset, split, path))


def wikitext_rows(subset: str, split: str, path: str | None = None) -> list[str]:
    """The rows of the hub set `Salesforce/wikitext`, or of a local folder laid out like it.

    Raises:
        UserError: no such files, or no network.
    """
    import pandas as pd

    from ritornello.common.models.hub import hub_snapshot

    root = hub_snapshot(path or "Salesforce/wikitext", repo_type="dataset", only=subset)
    files = sorted((root / subset).glob(f"{split}-*.parquet"))
    if not files:
        raise UserError(f"{root / subset} has no {split}-*.parquet")
    return [row for file in files for row in pd.read_parquet(file)["text"]]


def _local_text(path: Path, split: str) -> str:
    if path.is_file():
        return _read(path)
    short = {"validation": "valid"}.get(split, split)
    for pattern in (f"{split}.txt", f"{short}.txt", f"wiki.{split}.*", f"wiki.{short}.*"):
        for file in sorted(path.glob(pattern)):
            return _read(file)
    raise UserError(f"path={path} is neither a text file nor a folder with {split}.txt")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is no text in UTF-8: {error}") from error


def c4_shard(path: str | None = None, documents: int = 2000) -> list[str]:
    """The first documents of C4's English training shard 0.

    Args:
        path: a local `c4-train.00000-of-01024.json.gz`; without it the hub file of `allenai/c4`.
        documents: how many.

    Raises:
        UserError: no such file, one of another kind, or no network.
    """
    if path is None:
        from huggingface_hub import hf_hub_download

        try:
            path = hf_hub_download(
                "allenai/c4", "en/c4-train.00000-of-01024.json.gz", repo_type="dataset"
            )
        except Exception as error:
            raise UserError(
                f"C4's shard 0 cannot be fetched ({error}): pass the path of a local "
                "c4-train.00000-of-01024.json.gz"
            ) from error
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"path={path} is not a file")
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            return [json.loads(line)["text"] for _, line in zip(range(documents), lines)]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"path={path} is not gzipped JSON lines with a text each, as C4's shards are: {error}"
        ) from error


def text_windows(
    text: str,
    tokenizer: Callable,
    *,
    tokens: int,
    windows: int,
    start: float = 0.0,
    order: Literal["consecutive", "random"] = "consecutive",
    seed: int = 0,
) -> TextWindows:
    """Cuts a text into windows of token ids.

    Args:
        text: the text.
        tokenizer: a transformers tokenizer.
        tokens: length of a window.
        windows: how many.
        start: where the first window begins, as a share of the text in [0, 1).
        order: `consecutive` windows from `start` on, or at `random` offsets drawn from `seed`.

    Returns:
        (windows, tokens) int64.

    Raises:
        UserError: the text is too short.
    """
    if not 0 <= start < 1:
        raise ValueError(f"start must be in [0, 1), got {start}")
    # English and code have fewer than 12 characters a token: tokenise no more than is needed.
    begin = int(start * len(text))
    piece = text[begin:] if order == "random" else text[begin : begin + 12 * tokens * windows]
    ids = torch.tensor(tokenizer(piece, add_special_tokens=False)["input_ids"], dtype=torch.long)
    needed = tokens * windows if order == "consecutive" else tokens + 1
    if len(ids) < needed:
        raise UserError(
            f"the text has {len(ids)} tokens from start={start} on, "
            f"but windows={windows} of tokens={tokens} need {needed}"
        )
    if order == "consecutive":
        return ids[:needed].view(windows, tokens)
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.randint(len(ids) - tokens, (windows,), generator=generator)
    return ids[offsets[:, None] + torch.arange(tokens)]
