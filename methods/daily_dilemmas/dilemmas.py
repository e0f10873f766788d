"""Dilemmas of two actions, each with the values it upholds; the published files, checked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ritornello.common.data.tables import read_table
from ritornello.common.errors import UserError
from ritornello.common.evaluation import SampleError
from ritornello.common.models.hub import hub_snapshot
from ritornello.methods.daily_dilemmas.values import THEORIES, ValueTable, load_values, parse_list

Kind = Literal["to_do", "not_to_do"]
KINDS: tuple[Kind, Kind] = ("to_do", "not_to_do")
_COLUMNS = {"idx", "dilemma_situation", "action_type", "action", "values_names"}
_SITUATION_COLUMNS = {"idx", "dilemma_situation"}
_FORMATS = (".csv", ".parquet", ".jsonl")


@dataclass(frozen=True)
class Action:
    """One of the two ways out.

    Attributes:
        text: what is done.
        values: what the action upholds; no name twice.
        classes: theory → class of every value, aligned with `values`, None for no class.
        consequence: what goes wrong then.
    """

    text: str
    values: tuple[str, ...]
    classes: Mapping[str, tuple[str | None, ...]]
    consequence: str = ""

    @classmethod
    def of(cls, text: str, values: Iterable[str], table: ValueTable) -> "Action":
        """An action whose classes are the table's; names that come again are dropped.

        Raises:
            SampleError: a value is not in the table.
        """
        names = tuple(dict.fromkeys(values))
        rows = [table[name] for name in names]
        return cls(text, names, {t: tuple(row[t] for row in rows) for t in THEORIES})


@dataclass(frozen=True)
class Dilemma:
    """A situation that ends with a question, and what speaks for doing and for not doing.

    Attributes:
        idx: number in the data set; neither contiguous nor sorted.
        situation: the text that a model sees.
        actions: by kind: to_do and not_to_do.
        topic: group of topics.
    """

    idx: int
    situation: str
    actions: Mapping[Kind, Action]
    topic: str = ""

    def __post_init__(self) -> None:
        if set(self.actions) != set(KINDS):
            raise SampleError(
                f"dilemma {self.idx} needs exactly one action of each type {list(KINDS)}, "
                f"got {sorted(self.actions)}"
            )


def load_daily_dilemmas(
    path_or_id: str | Path = "kellycyy/daily_dilemmas",
    *,
    values: ValueTable | None = None,
    revision: str | None = None,
) -> list[Dilemma]:
    """Loads dilemmas with values: the configuration `Dilemmas_with_values_aggregated`.

    Args:
        path_or_id: a hub id, a folder, or a .csv, .parquet or .jsonl file with one row per action.
        values: the names that may occur; default: the published 301.
        revision: of the hub repository.

    Returns:
        Dilemmas in the order of their first row.

    Raises:
        UserError: the data are not there (or gated), or no file has the columns.
        SampleError: a row breaks the schema; the message names file, row and dilemma.
    """
    file, rows = _table(path_or_id, _COLUMNS, revision)
    return dilemmas_from_rows(rows, values=values, source=file.name)


def load_situations(
    path_or_id: str | Path = "kellycyy/daily_dilemmas", *, revision: str | None = None
) -> dict[int, str]:
    """Loads the questions alone, for runs without an analysis of values: idx → situation."""
    _, rows = _table(path_or_id, _SITUATION_COLUMNS, revision)
    return {int(row["idx"]): str(row["dilemma_situation"]) for row in rows}


def dilemmas_from_rows(
    rows: Sequence[Mapping[str, Any]], *, values: ValueTable | None = None, source: str = "rows"
) -> list[Dilemma]:
    """Makes dilemmas of rows of the published schema, one per action.

    Raises:
        SampleError: see `load_daily_dilemmas`.
    """
    table = values or load_values()
    found: dict[int, dict[Kind, Action]] = {}
    first: dict[int, Mapping[str, Any]] = {}
    for number, row in enumerate(rows):
        place = f"{source}, row {number}"
        try:
            idx = int(row["idx"])
        except (TypeError, ValueError):
            raise SampleError(f"{place}: idx must be an integer, got {row['idx']!r}") from None
        kind = row["action_type"]
        if kind not in KINDS:
            raise SampleError(
                f"{place}, dilemma {idx}: action_type must be one of {list(KINDS)}, got {kind!r}"
            )
        actions = found.setdefault(idx, {})
        if kind in actions:
            raise SampleError(
                f"{place}: dilemma {idx} has a second row of type {kind}; "
                "it needs exactly one action of each type"
            )
        actions[kind] = _action(row, table, f"{place}, dilemma {idx}")
        first.setdefault(idx, row)
    return [
        Dilemma(
            idx,
            str(first[idx]["dilemma_situation"]),
            actions,
            topic=str(first[idx].get("topic_group") or ""),
        )
        for idx, actions in found.items()
    ]


def _action(row: Mapping[str, Any], table: ValueTable, place: str) -> Action:
    names = [str(name) for name in _list(row, "values_names", place)]
    for name in names:
        try:
            table[name]
        except SampleError as error:
            raise SampleError(f"{place}: {error}") from None
    kept = [i for i, name in enumerate(names) if name not in names[:i]]
    classes = {}
    for theory in THEORIES:
        if isinstance(row.get(theory), str | list | tuple) or hasattr(row.get(theory), "shape"):
            given = _list(row, theory, place)
        else:
            given = [table[name][theory] for name in names]
        if len(given) != len(names):
            raise SampleError(
                f"{place}: {theory} must have as many entries as values_names, "
                f"got {len(given)} and {len(names)}"
            )
        classes[theory] = tuple(given[i] for i in kept)
    return Action(
        str(row["action"]),
        tuple(names[i] for i in kept),
        classes,
        str(row.get("negative_consequence") or ""),
    )


def _list(row: Mapping[str, Any], column: str, place: str) -> list[str | None]:
    cell = row[column]
    if isinstance(cell, str):
        try:
            return parse_list(cell)
        except ValueError as error:
            raise SampleError(f"{place}, {column}: {error}") from None
    # parquet and JSON lines may hold lists as such; NaN is the only value unequal to itself
    return [None if item is None or item != item else str(item) for item in cell]


def _table(
    path_or_id: str | Path, columns: set[str], revision: str | None
) -> tuple[Path, Sequence[Mapping[str, Any]]]:
    """The first file with these columns, and its rows."""
    path = Path(path_or_id).expanduser()
    if path.suffix in _FORMATS and not path.is_file():
        raise UserError(f"there is no file {path_or_id}")
    if path.is_file():
        files = [path]
    else:
        folder = hub_snapshot(str(path_or_id), repo_type="dataset", revision=revision)
        files = sorted(file for file in folder.rglob("*") if file.suffix in _FORMATS)
    seen = []
    for file in files:
        table = read_table(file)
        if columns <= set(table.columns):
            return file, table.to_dict("records")
        seen.append(f"{file.name} (lacks {sorted(columns - set(table.columns))})")
    raise UserError(
        f"{path_or_id} has no .csv, .parquet or .jsonl file with the columns {sorted(columns)}; "
        f"found {seen or 'none'}"
    )
