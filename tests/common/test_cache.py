"""Where the cache lies."""

from pathlib import Path

import pytest

from ritornello.common.cache import cache_root
from ritornello.common.errors import UserError


def test_the_cache_is_where_the_first_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("RITORNELLO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == Path("/home/someone/.cache/ritornello")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_root() == Path("/somewhere/ritornello")
    monkeypatch.setenv("RITORNELLO_CACHE", "/exactly/here")
    assert cache_root() == Path("/exactly/here")


def test_without_a_home_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("RITORNELLO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(UserError, match="RITORNELLO_CACHE"):
        cache_root()
