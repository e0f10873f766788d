"""Rows go to a file and come back."""

import pytest

from ritornello.common.jsonl import read_jsonl, write_jsonl

ROWS = [{"id": "a", "text": "naïve\nline\u2028"}, {"id": "b", "steps": ["1", "2"], "n": None}]


@pytest.mark.parametrize("rows", [ROWS, []], ids=["some", "none"])
def test_rows_come_back_and_replace_what_was_there(rows, tmp_path):
    path = tmp_path / "deeper" / "rows.jsonl"
    write_jsonl(path, [{"id": "old"}])
    write_jsonl(path, iter(rows))
    assert read_jsonl(path) == rows
    assert [file.name for file in path.parent.iterdir()] == ["rows.jsonl"]


def test_a_row_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, ROWS)
    with pytest.raises(TypeError):
        write_jsonl(path, [{"id": "c"}, {"id": object()}])
    assert read_jsonl(path) == ROWS
