"""The 301 values and their classes in five theories (sec. 3 of the paper)."""

import ast
import csv
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from ritornello.common.errors import UserError
from ritornello.common.evaluation import SampleError

Theory = Literal["wvs", "mft", "virtue", "emotion", "maslow"]
Classes = Mapping[str, str | None]

# All classes that occur, in the order of the paper's figures; the published plots leave out
# the emotion "aggressiveness".
THEORIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "wvs": ("Traditional", "Secular-rational", "Survival", "Self-expression"),
        "mft": ("Authority", "Care", "Fairness", "Loyalty", "Purity"),
        "virtue": (
            "Truthfulness",
            "Courage",
            "Friendliness",
            "Ambition",
            "Liberality",
            "Temperance",
            "Modesty",
            "Righteous Indignation",
            "Patience",
        ),
        "emotion": (
            "trust",
            "anticipation",
            "joy",
            "optimism",
            "fear",
            "sadness",
            "disgust",
            "submission",
            "anger",
            "love",
            "remorse",
            "disapproval",
            "contempt",
            "aggressiveness",
        ),
        "maslow": (
            "physiological",
            "safety",
            "love and belonging",
            "self-esteem",
            "self-actualization",
        ),
    }
)
_NOTHING = {"", "nan", "None", "none"}


class ValueTable(Mapping[str, Classes]):
    """Value name → its class in each theory, or None where it has none.

    >>> load_values()["honesty"]["virtue"]
    'Truthfulness'
    """

    def __init__(self, rows: Mapping[str, Mapping[str, str | None]]) -> None:
        for name, classes in rows.items():
            for theory, known in THEORIES.items():
                found = classes.get(theory)
                if found is not None and found not in known:
                    raise SampleError(
                        f"value {name!r}: {theory} must be one of {list(known)} or None, "
                        f"got {found!r}"
                    )
        self._rows = {name: {t: c.get(t) for t in THEORIES} for name, c in rows.items()}

    def __getitem__(self, name: str) -> Classes:
        try:
            return self._rows[name]
        except KeyError:
            near = difflib.get_close_matches(str(name), self._rows, n=3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise SampleError(f"{name!r} is none of the {len(self)} values{hint}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def in_class(self, theory: Theory, name: str) -> tuple[str, ...]:
        """The values of one class."""
        check_theory(theory)
        return tuple(value for value, classes in self._rows.items() if classes[theory] == name)


def load_values(path: str | Path | None = None) -> ValueTable:
    """The published table, which ships with the package, or one of the same columns as CSV.

    Args:
        path: a CSV file with the columns value, WVS, MFT, Virtue, Emotion and Maslow.

    Raises:
        UserError: there is no such file, or a column is missing.
        SampleError: a class that the theory does not have.
    """
    if path is None:
        return _shipped()
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"there is no file {path}")
    with file.open(encoding="utf-8-sig", newline="") as text:
        reader = csv.DictReader(text)
        columns = {column.lower(): column for column in reader.fieldnames or ()}
        if missing := {"value", *THEORIES} - set(columns):
            raise UserError(f"{file.name} lacks the columns {sorted(missing)}")
        rows = {
            row[columns["value"]]: {t: _class(row[columns[t]]) for t in THEORIES} for row in reader
        }
    return ValueTable(rows)


def check_theory(theory: str, *, also: Sequence[str] = ()) -> None:
    """Raises ValueError for a theory that there is not."""
    if theory not in THEORIES and theory not in also:
        raise ValueError(f"by must be one of {[*THEORIES, *also]}, got {theory!r}")


def parse_list(text: str) -> list[str | None]:
    """Reads a list that was written as a Python literal with bare `nan` for nothing.

    Only list displays of strings and `nan`/`None` are read; nothing is evaluated.

    Raises:
        ValueError: the text is no such list.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"not a list: {text[:80]!r}") from error
    if not isinstance(tree, ast.List):
        raise ValueError(f"not a list: {text[:80]!r}")
    items: list[str | None] = []
    for node in tree.elts:
        if isinstance(node, ast.Name) and node.id == "nan":
            items.append(None)
        elif isinstance(node, ast.Constant) and (node.value is None or type(node.value) is str):
            items.append(node.value)
        else:
            raise ValueError(f"a list may hold strings and nan only: {ast.unparse(node)[:80]!r}")
    return items


def _class(cell: str | None) -> str | None:
    return None if cell is None or cell.strip() in _NOTHING else cell.strip()


@cache
def _shipped() -> ValueTable:
    file = resources.files("ritornello.methods.daily_dilemmas").joinpath("values.json")
    table = json.loads(file.read_text(encoding="utf-8"))
    columns = table["columns"]
    return ValueTable(
        {
            name: dict(zip(columns, classes, strict=True))
            for name, classes in table["values"].items()
        }
    )
