"""An append-only log of JSON lines that survives being killed at any byte."""

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from ritornello.common.chat.protocol import ChatError

_SYNC_LINES = 64
_SYNC_SECONDS = 1.0
# json.dumps would make an encoder for every record
to_line = json.JSONEncoder(separators=(",", ":")).encode


class RunLockedError(ChatError):
    """Another process writes this journal."""


class Journal:
    """One writer appends records; each is one `write` of one whole line.

    A line torn by a sudden end is removed when the journal is opened again. The data reach the
    disk (fsync) at least every 64 lines or at the first append after a second, and at the end.

    Args:
        path: the file; its folder is made.

    Raises:
        RunLockedError: another process holds the journal.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise RunLockedError(f"{self.path} is being written by another process") from error
        self._lock = threading.Lock()
        self._unsynced = 0
        self._synced_at = time.monotonic()
        self._drop_torn_line()

    def append(self, record: Mapping[str, object]) -> None:
        """Writes one record."""
        line = (to_line(record) + "\n").encode()
        with self._lock:
            os.write(self._file, line)
            self._unsynced += 1
            late = time.monotonic() - self._synced_at >= _SYNC_SECONDS
            if self._unsynced >= _SYNC_LINES or late:
                self._sync()

    def records(self) -> Iterator[dict]:
        """All whole records, oldest first."""
        return read_records(self.path)

    def close(self) -> None:
        """Brings everything to the disk and lets others write."""
        with self._lock:
            self._sync()
            os.close(self._file)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _sync(self) -> None:
        os.fsync(self._file)
        self._unsynced = 0
        self._synced_at = time.monotonic()

    def _drop_torn_line(self) -> None:
        size = os.fstat(self._file).st_size
        data = self.path.read_bytes() if size else b""
        whole = data.rfind(b"\n") + 1
        if whole < size:
            os.ftruncate(self._file, whole)


def read_records(path: str | Path) -> Iterator[dict]:
    """The whole records of a journal, also while it is being written."""
    with Path(path).open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield json.loads(line.decode())
