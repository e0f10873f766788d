"""Windows of real text are what they say, and the field's corpora load from local files."""

import gzip
import json

import pandas as pd
import pytest
import torch

from ritornello.common.data import (
    c4_shard,
    documentation_text,
    stdlib_source_text,
    text_windows,
    wikitext2,
)
from ritornello.common.errors import UserError


def letters(text, add_special_tokens=False):
    """A tokenizer whose tokens are characters."""
    return {"input_ids": [ord(c) for c in text]}


def test_embedded_texts_are_real_and_long():
    assert len(documentation_text()) > 400_000
    assert "import" in stdlib_source_text(50_000)
    assert len(stdlib_source_text(50_000)) == 50_000


def test_consecutive_windows_are_the_text_in_order():
    windows = text_windows("abcdefghij", letters, tokens=3, windows=2, start=0.2)
    assert windows.tolist() == [[ord(c) for c in "cde"], [ord(c) for c in "fgh"]]


def test_random_windows_come_from_the_seed():
    text = "".join(chr(32 + i % 90) for i in range(500))
    options = {"tokens": 8, "windows": 5, "order": "random"}
    first = text_windows(text, letters, seed=1, **options)
    assert torch.equal(first, text_windows(text, letters, seed=1, **options))
    assert not torch.equal(first, text_windows(text, letters, seed=2, **options))
    for row in first.tolist():
        assert "".join(map(chr, row)) in text


def test_short_texts_and_bad_starts_are_named():
    with pytest.raises(UserError, match="windows=4"):
        text_windows("abc", letters, tokens=3, windows=4)
    with pytest.raises(ValueError, match="start"):
        text_windows("abc", letters, tokens=1, windows=1, start=1.0)


def test_corpora_load_from_local_files(tmp_path):
    (tmp_path / "test.txt").write_text("some text")
    assert wikitext2("test", path=str(tmp_path)) == "some text"
    assert wikitext2("test", path=str(tmp_path / "test.txt")) == "some text"
    with pytest.raises(UserError, match="path="):
        wikitext2("train", path=str(tmp_path))
    folder = tmp_path / "hub" / "wikitext-2-raw-v1"  # as `hf download` leaves it
    folder.mkdir(parents=True)
    for number, row in enumerate(("some", "text")):
        pd.DataFrame({"text": [row]}).to_parquet(folder / f"test-0000{number}-of-00002.parquet")
    assert wikitext2("test", path=str(tmp_path / "hub")) == "some\n\ntext"
    with pytest.raises(UserError, match="has no train-"):
        wikitext2("train", path=str(tmp_path / "hub"))
    shard = tmp_path / "c4.json.gz"
    with gzip.open(shard, "wt") as file:
        for i in range(5):
            file.write(json.dumps({"text": f"document {i}"}) + "\n")
    assert c4_shard(str(shard), documents=3) == ["document 0", "document 1", "document 2"]
    with pytest.raises(UserError, match="not a file"):
        c4_shard(str(tmp_path / "absent.gz"))
    plain, other = tmp_path / "c4.json", tmp_path / "other.gz"
    plain.write_text('{"text": "a"}')
    with gzip.open(other, "wt") as file:
        file.write('{"body": "a"}')
    for wrong in (plain, other):
        with pytest.raises(UserError, match="not gzipped JSON lines with a text"):
            c4_shard(str(wrong))
    with pytest.raises(UserError, match="no text in UTF-8"):
        wikitext2("test", path=str(next(folder.iterdir())))


def test_real_wikitext_loads(shared_data):
    assert "Robert" in wikitext2("test", path=str(shared_data / "text" / "wikitext2"))
