"""Tables in files, as data sets are published."""

from pathlib import Path
from typing import TYPE_CHECKING

from ritornello.common.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

TABLE_FORMATS = (".parquet", ".jsonl", ".csv", ".tsv")


def read_table(file: Path) -> "pd.DataFrame":
    """A table with its cells as they stand: no text is taken for missing, or for a date.

    Args:
        file: its name ends in one of `TABLE_FORMATS`.

    Raises:
        UserError: the file cannot be read.
    """
    import pandas as pd

    try:
        if file.suffix == ".parquet":
            return pd.read_parquet(file)
        if file.suffix == ".jsonl":
            return pd.read_json(
                file,
                lines=True,
                dtype=False,  # type: ignore[arg-type]  # documented, but pandas' stub knows no False
                convert_dates=False,
            )
        return pd.read_csv(file, sep="," if file.suffix == ".csv" else "\t", keep_default_na=False)
    except (ValueError, OSError) as error:  # what pandas and pyarrow raise for broken files
        raise UserError(f"{file.name} cannot be read: {error}") from error
