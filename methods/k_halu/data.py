"""The questions: loaded from the hub or a file, checked row by row."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ritornello.common.chat import Text
from ritornello.common.errors import UserError
from ritornello.common.evaluation import Choice, ChoiceTarget, Sample, SampleError
from ritornello.common.models.hub import hub_snapshot
from ritornello.methods.k_halu.metrics import OPTIONS

Polarity = Literal["faithful", "hallucinated", "unknown"]
_CELL = re.compile(r"p(?:60|30|10)_(?P<polarity>[ht])(?P<domain>[cehimst])")
_HALLUCINATED = re.compile(r"환각|hallucinat", re.IGNORECASE)
_FAITHFUL = re.compile(r"파악할 수 있는|확인할 수 있는|일치하는|support", re.IGNORECASE)
_FULL_SET = (
    "The full set (2,170 questions) is not on the hub: apply for AI-Hub data set 71872, unpack it "
    "and pass the path of k_halu_test_v1_1.jsonl"
)


def load_k_halu(
    path_or_id: str = "J-Seo/k_halu_samples", split: str = "test", revision: str | None = None
) -> list[Sample]:
    """Loads the benchmark.

    Args:
        path_or_id: a .jsonl, .json or .parquet file, a folder with one whose name holds `split`,
            or a hub id. The default is the open sample of 21 questions.
        split: which file of a folder or hub repository.
        revision: of the hub repository.

    Returns:
        Samples whose `labels` are n_gold, polarity and domain ("unknown" where nothing tells), and
        whose `cluster` is the document.

    Raises:
        UserError: the data are not there, or gated.
        SampleError: a row is not a question; the message names file and row.
    """
    file = _file(path_or_id, split, revision)
    return [sample_from_row(row, number, file.name) for number, row in enumerate(_rows(file))]


def sample_from_row(row: Mapping[str, Any], number: int, source: str = "row") -> Sample:
    """Checks one row of the published schema and makes a sample of it.

    `label` holds the 0-based places of the right options; a single integer is accepted.
    """
    place = f"{source}, row {number}"
    keys = [str(i) for i in range(1, OPTIONS + 1)]
    for name in ("date", "document", "instruction", *keys):
        if not isinstance(row.get(name), str):
            raise SampleError(f"{place}: {name!r} must be a string, got {row.get(name)!r}")
    label = row.get("label")
    label = [label] if isinstance(label, int) else label
    if (
        not isinstance(label, list | tuple)
        or not all(type(i) is int and 0 <= i < OPTIONS for i in label)
        or not 1 <= len(label) <= 3
        or len(set(label)) < len(label)
    ):
        raise SampleError(
            f"{place}: 'label' must be one to three different integers in 0..{OPTIONS - 1}, "
            f"got {row.get('label')!r}"
        )
    name = str(row.get("id", number))
    polarity, domain = polarity_and_domain(name, row["instruction"])
    document = row["document"].strip()
    return Sample(
        id=name,
        parts=(Text(document),),
        choices=tuple(Choice.of(row[key], key) for key in keys),
        target=ChoiceTarget.of(*label),
        cluster=hashlib.blake2b(document.encode(), digest_size=6).hexdigest(),
        labels={"n_gold": len(label), "polarity": polarity, "domain": domain},
        meta={
            "date": row["date"].strip(),
            "instruction": row["instruction"].strip(),
            "language": row.get("language", "ko"),
        },
    )


def polarity_and_domain(name: str, instruction: str) -> tuple[Polarity, str]:
    """What is asked for and the domain's letter, from a cell name ("p60_hc") or the instruction."""
    cell = _CELL.search(name)
    if cell:
        return ("hallucinated" if cell["polarity"] == "h" else "faithful"), cell["domain"]
    if _HALLUCINATED.search(instruction):
        return "hallucinated", "unknown"
    return ("faithful" if _FAITHFUL.search(instruction) else "unknown"), "unknown"


def _file(path_or_id: str, split: str, revision: str | None) -> Path:
    path = Path(path_or_id).expanduser()
    if path.is_file():
        return path
    if path.suffix in (".jsonl", ".json", ".parquet"):
        raise UserError(f"there is no file {path_or_id}. {_FULL_SET}")
    try:
        folder = hub_snapshot(path_or_id, repo_type="dataset", revision=revision)
    except UserError as error:
        raise UserError(f"{error} {_FULL_SET}") from error
    found = [
        file
        for pattern in ("*.jsonl", "*.json", "*.parquet")
        for file in sorted(folder.rglob(pattern))
        if split in file.name
    ]
    if not found:
        raise UserError(f"{path_or_id} holds no .jsonl, .json or .parquet file named {split!r}")
    return found[0]


def _rows(file: Path) -> Iterator[Mapping[str, Any]]:
    if file.suffix == ".parquet":
        import pandas as pd

        table = pd.read_parquet(file)
        for row in table.to_dict("records"):
            label = row.get("label")
            if isinstance(label, np.ndarray | np.generic):
                label = label.tolist()
            yield {**{str(key): value for key, value in row.items()}, "label": label}
        return
    text = file.read_text(encoding="utf-8-sig")
    try:
        if text.lstrip().startswith("["):
            yield from json.loads(text)
        else:
            for line in text.split("\n"):  # documents may hold what splitlines() breaks at too
                if line.strip():
                    yield json.loads(line)
    except json.JSONDecodeError as error:
        raise SampleError(f"{file.name} is not JSON: {error}") from error
