"""Tables in files."""

import pandas as pd
import pytest

from ritornello.common.data.tables import TABLE_FORMATS, read_table
from ritornello.common.errors import UserError

ROWS = pd.DataFrame({"text": ["None", "2024-01-02", "n/a"], "created_at": ["1", "2", "3"]})


@pytest.mark.parametrize("suffix", TABLE_FORMATS)
def test_texts_stay_texts_in_every_format(tmp_path, suffix):
    file = tmp_path / f"table{suffix}"
    if suffix == ".parquet":
        ROWS.to_parquet(file)
    elif suffix == ".jsonl":
        ROWS.to_json(file, orient="records", lines=True)
    else:
        ROWS.to_csv(file, sep="," if suffix == ".csv" else "\t", index=False)
    found = read_table(file)
    assert found["text"].tolist() == ROWS["text"].tolist()
    assert [str(value) for value in found["created_at"]] == ["1", "2", "3"]
    file.write_bytes(b"\x00" if suffix == ".parquet" else b"")
    if suffix != ".jsonl":  # no line is no row there
        with pytest.raises(UserError, match=f"table{suffix} cannot be read"):
            read_table(file)
