"""Rows of JSON, one a line."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ritornello.common.runs.store import write_atomically


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one row a line, in UTF-8: the whole file or none of it."""
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All rows of a file."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
