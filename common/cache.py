"""A folder for what is expensive to make and the same for all: converted weights, compiled code."""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ritornello.common.errors import UserError


def cache_root() -> Path:
    """`$RITORNELLO_CACHE`, else `$XDG_CACHE_HOME/ritornello`, else `~/.cache/ritornello`."""
    if given := os.environ.get("RITORNELLO_CACHE"):
        return Path(given)
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "ritornello"
    try:
        return Path.home() / ".cache" / "ritornello"
    except RuntimeError:  # a user without an entry in the system's list, and no HOME
        raise UserError("there is no home folder for the cache: set RITORNELLO_CACHE") from None


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Holds an advisory lock on `path` (made if absent); the system releases it if we die."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def cached_directory(name: str, build: Callable[[Path], None]) -> Path:
    """A folder of the cache, built once: by one process, and whole or not at all.

    Args:
        name: the folder's name; put a content hash of the inputs in it.
        build: fills an empty folder.
    """
    target = cache_root() / name
    if target.is_dir():
        return target
    with file_lock(cache_root() / "locks" / name.replace("/", "_")):
        if target.is_dir():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            build(unfinished)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return target


def sha256_file(path: Path) -> str:
    """The hexadecimal SHA-256 of a file."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
