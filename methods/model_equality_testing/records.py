"""Samples from files: one JSON object a line, {"prompt_id": ..., "completion": ...}."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ritornello.common.errors import UserError
from ritornello.methods.model_equality_testing.sample import (
    CompletionSample,
    encode_tokens,
    encode_unicode,
)


def read_samples(paths: Sequence[str | Path], length: int | None = None) -> list[CompletionSample]:
    """Reads samples that can be compared: one numbering of prompts, one L.

    A completion is a string, compared by characters, or a list of token ids; all files agree.

    Args:
        paths: one file a sample.
        length: positions; by default the longest completion's, at most 1000.

    Raises:
        UserError: a file that is missing or empty, a line that is no such object, or strings beside
            token ids.
    """
    tables = [_rows(Path(path)) for path in paths]
    names = sorted({str(prompt) for rows in tables for prompt, _ in rows})
    number = {name: index for index, name in enumerate(names)}
    kinds = {type(completion) for rows in tables for _, completion in rows}
    if len(kinds) > 1:
        raise UserError("completions must be all strings or all lists of token ids, got both")
    longest = max(len(completion) for rows in tables for _, completion in rows)
    length = min(max(1, longest), 1000) if length is None else length
    encode: Any = encode_unicode if kinds == {str} else encode_tokens
    return [
        CompletionSample(
            [number[str(prompt)] for prompt, _ in rows],
            encode([completion for _, completion in rows], length),
            len(names),
        )
        for rows in tables
    ]


def _rows(path: Path) -> list[tuple[Any, Any]]:
    try:
        # at "\n" only: splitlines() would also break at separators within a completion
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            prompt, completion = record["prompt_id"], record["completion"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}:{number} must be an object with prompt_id and completion ({error!r})"
            ) from error
        integers = isinstance(completion, list) and all(isinstance(t, int) for t in completion)
        if not (isinstance(completion, str) or integers):
            raise UserError(
                f"{path}:{number}: completion must be a string or a list of token ids, got "
                f"{completion!r}"
            )
        rows.append((prompt, completion))
    if not rows:
        raise UserError(f"{path} holds no completions")
    return rows
