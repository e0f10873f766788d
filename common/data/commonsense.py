"""The seven commonsense tasks of the pruning and quantisation literature, as questions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ritornello.common.data.tables import read_table
from ritornello.common.errors import UserError
from ritornello.common.evaluation.multiple_choice import Question

Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Task:
    hub: str
    folder: str
    split: str
    question: Callable[[Row], Question]


def commonsense_questions(task: str, path: str | None = None) -> list[Question]:
    """Questions of one task, in the data set's order.

    Args:
        task: boolq, piqa, hellaswag, winogrande, arc_easy, arc_challenge or openbookqa.
        path: a hub id, or a local folder laid out like it (`<config>/<split>*.parquet` or
            `.jsonl`); None for the task's own hub id.

    Raises:
        UserError: an unknown task, no such files or columns, or no network.
    """
    if task not in _TASKS:
        raise UserError(f"task must be one of {', '.join(_TASKS)}, got {task!r}")
    spec = _TASKS[task]
    source = path or spec.hub
    rows = _rows(source, spec.folder, spec.split)
    try:
        return [spec.question(row) for row in rows]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{source} is not laid out as {spec.hub}: {error!r}") from error


def _rows(source: str, folder: str, split: str) -> list[Row]:
    from ritornello.common.models.hub import hub_snapshot

    root = hub_snapshot(source, repo_type="dataset")
    place = root / folder if (root / folder).is_dir() else root
    files = sorted(f for f in place.glob(f"{split}*") if f.suffix in (".parquet", ".jsonl"))
    if not files:
        raise UserError(f"{source} has neither {split}*.parquet nor {split}*.jsonl in {folder}/")
    return [row for f in files for row in read_table(f).to_dict("records")]


def _boolq(row: Row) -> Question:
    context = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
    return Question(context, (" no", " yes"), int(bool(row["answer"])))


def _piqa(row: Row) -> Question:
    choices = tuple(f" {row[key]}" for key in ("sol1", "sol2"))
    return Question(f"Question: {row['goal']}\nAnswer:", choices, int(row["label"]))


def _hellaswag(row: Row) -> Question:
    context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    return Question(
        _cleaned(context), tuple(f" {_cleaned(e)}" for e in row["endings"]), int(row["label"])
    )


def _cleaned(text: str) -> str:
    """Without the markup that WikiHow pages leave."""
    text = text.strip().replace(" [title]", ". ")
    while "[" in text and "]" in text[text.index("[") :]:
        start = text.index("[")
        text = text[:start] + text[text.index("]", start) + 1 :]
    return text.replace("  ", " ").strip()


def _winogrande(row: Row) -> Question:
    # What fills the blank and the rest of the sentence are ranked together, after the start.
    before, after = row["sentence"].split("_", 1)
    options = (row["option1"], row["option2"])
    return Question(before.rstrip(), tuple(f" {o}{after}" for o in options), int(row["answer"]) - 1)


def _letters(row: Row, stem: str) -> Question:
    labels = list(row["choices"]["label"])
    choices = tuple(f" {text}" for text in row["choices"]["text"])
    return Question(stem, choices, labels.index(row["answerKey"]))


def _arc(row: Row) -> Question:
    return _letters(row, f"Question: {row['question']}\nAnswer:")


def _openbookqa(row: Row) -> Question:
    return _letters(row, row["question_stem"])


_TASKS = {
    "boolq": _Task("google/boolq", "data", "validation", _boolq),
    "piqa": _Task("baber/piqa", "data", "validation", _piqa),
    "hellaswag": _Task("Rowan/hellaswag", "data", "validation", _hellaswag),
    "winogrande": _Task("allenai/winogrande", "winogrande_debiased", "validation", _winogrande),
    "arc_easy": _Task("allenai/ai2_arc", "ARC-Easy", "test", _arc),
    "arc_challenge": _Task("allenai/ai2_arc", "ARC-Challenge", "test", _arc),
    "openbookqa": _Task("allenai/openbookqa", "main", "test", _openbookqa),
}
