"""The run directory: one record per finished cell, written whole or not at all."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ritornello.common.errors import UserError
from ritornello.common.runs.experiment import Cell, CellContext


class RunLockedError(UserError):
    """Another process works in this run directory."""


# What the system says of a disk that takes no more.
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


class UnwritableError(UserError):
    """The run directory, the cache or the temporary folder cannot be written."""

    def __init__(self, path: Path | str, error: OSError) -> None:
        self.errno = error.errno or errno.EIO
        super().__init__(
            f"cannot write in {error.filename or path} ({error.strerror or error}); finished cells "
            "are kept: make room, or choose another folder by outputs=, RITORNELLO_CACHE or TMPDIR"
        )


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader, or a crash, sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk does not say where
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def _name_holder(lock: IO[str]) -> None:
    """Writes our process into a lock, for messages: a full disk does not keep it from holding."""
    with suppress(OSError):
        os.ftruncate(lock.fileno(), 0)
        os.write(lock.fileno(), str(os.getpid()).encode())


class RunDirectory:
    """`outputs/<paper>/<profile>/<config hash>/`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        """Makes the folder, or says why it cannot be written."""
        try:
            for name in ("cells", "artifacts", "scratch", "failures", "locks"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
            probe = self.path / "locks" / "writable"
            probe.write_text("")
        except OSError as error:
            raise UnwritableError(self.path, error) from error

    @contextmanager
    def lock(self, *, shared: bool = False) -> Iterator[None]:
        """Holds the directory for one run; `shared` lets several runs divide its cells.

        The system drops the lock when the process ends, however it ends.

        Raises:
            RunLockedError: another run holds it.
        """
        with (self.path / "locks" / "run").open("a+") as handle:
            try:
                fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError as error:
                handle.seek(0)
                holder = handle.read().strip() or "unknown"
                raise RunLockedError(
                    f"another run (process {holder}) works in {self.path}: wait for it, stop it, "
                    "or let both share the cells with cooperative=true in each"
                ) from error
            _name_holder(handle)
            yield

    def claim(self, cell: Cell) -> IO[str] | None:
        """Takes a cell for this process; None when another process has it.

        Close the handle to give it back; the system does so if the process dies.
        """
        try:
            handle = (self.path / "locks" / cell.key).open("a+")
        except OSError as error:
            raise UnwritableError(self.path, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return None
        _name_holder(handle)
        return handle

    def claimed_by(self, process: int, cells: list[Cell]) -> list[Cell]:
        """The unfinished cells that a process had taken when it died."""
        return [
            cell
            for cell in cells
            if (lock := self.path / "locks" / cell.key).exists()
            and lock.read_text().strip() == str(process)
            and not self.is_finished(cell)
        ]

    def context(self, cell: Cell) -> CellContext:
        """The cell's folders. Artifacts of an unfinished attempt stay, as its scratch does."""
        context = CellContext(self.path / "scratch" / cell.key, self.path / "artifacts" / cell.key)
        context.scratch.mkdir(parents=True, exist_ok=True)
        context.artifacts.mkdir(parents=True, exist_ok=True)
        return context

    def record(self, cell: Cell, content: dict[str, Any]) -> None:
        """Writes a finished cell, then forgets its scratch and earlier failures."""
        body = json.dumps(content, sort_keys=True)
        digest = hashlib.sha256(body.encode()).hexdigest()
        try:
            write_atomically(self._file(cell), json.dumps({"sha256": digest, "record": content}))
        except OSError as error:
            raise UnwritableError(self.path, error) from error
        self._failure(cell).unlink(missing_ok=True)
        shutil.rmtree(self.path / "scratch" / cell.key, ignore_errors=True)
        artifacts = self.path / "artifacts" / cell.key
        if artifacts.is_dir() and not any(artifacts.iterdir()):
            artifacts.rmdir()

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """A finished cell's record; None when there is none or it is damaged (then set aside)."""
        path = self._file(cell)
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            body = json.dumps(stored["record"], sort_keys=True)
            if hashlib.sha256(body.encode()).hexdigest() == stored["sha256"]:
                return stored["record"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            pass
        path.replace(path.with_suffix(".damaged"))
        return None

    def is_finished(self, cell: Cell) -> bool:
        return self._file(cell).exists()

    def fail(self, cell: Cell, error: str) -> None:
        """Notes why a cell failed; a later run tries it again."""
        try:
            write_atomically(self._failure(cell), json.dumps({"cell": str(cell), "error": error}))
        except OSError as unwritable:
            raise UnwritableError(self.path, unwritable) from unwritable

    def failure(self, cell: Cell) -> str | None:
        """Why the cell failed in this run, if it did."""
        path = self._failure(cell)
        return json.loads(path.read_text())["error"] if path.exists() else None

    def forget(self, cells: list[Cell]) -> None:
        """Drops all that is kept of cells, so that they are measured again."""
        for cell in cells:
            self._file(cell).unlink(missing_ok=True)
            self._failure(cell).unlink(missing_ok=True)
            for name in ("scratch", "artifacts"):
                shutil.rmtree(self.path / name / cell.key, ignore_errors=True)

    def forget_failures(self, cells: list[Cell]) -> None:
        for cell in cells:
            self._failure(cell).unlink(missing_ok=True)

    def _file(self, cell: Cell) -> Path:
        return self.path / "cells" / f"{cell.key}.json"

    def _failure(self, cell: Cell) -> Path:
        return self.path / "failures" / f"{cell.key}.json"
