"""C++ kernels: built once, kept by content, and a clear reason where there is no compiler."""

import ctypes
import sys

import pytest

from ritornello.common.kernels import compiled

SOURCE = 'extern "C" double twice(double x) { return 2 * x; }'


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package of one C++ file, and an empty cache."""
    folder = tmp_path / "arithmetic"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "twice.cpp").write_text(SOURCE)
    (folder / "broken.cpp").write_text("this is no C++")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "arithmetic", raising=False)
    monkeypatch.setenv("RITORNELLO_CACHE", str(tmp_path / "cache"))
    compiled.load_library.cache_clear()
    compiled.build_obstacle.cache_clear()
    yield "arithmetic"
    compiled.load_library.cache_clear()
    compiled.build_obstacle.cache_clear()


def test_source_is_built_once_and_runs(package, tmp_path):
    for _ in range(2):
        compiled.load_library.cache_clear()
        library = compiled.load_library(package, "twice.cpp")
    library.twice.restype, library.twice.argtypes = ctypes.c_double, [ctypes.c_double]
    assert library.twice(21.5) == 43.0
    assert len(list((tmp_path / "cache" / "compiled").glob("twice-*"))) == 1


def test_changed_source_is_built_anew(package, tmp_path):
    compiled.load_library(package, "twice.cpp")
    (tmp_path / "arithmetic" / "twice.cpp").write_text(SOURCE.replace("2 *", "3 *"))
    compiled.load_library.cache_clear()
    library = compiled.load_library(package, "twice.cpp")
    library.twice.restype, library.twice.argtypes = ctypes.c_double, [ctypes.c_double]
    assert library.twice(2.0) == 6.0


def test_reason_names_what_is_missing(package, monkeypatch):
    assert "failed" in compiled.build_obstacle(package, "broken.cpp")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no C++ compiler" in compiled.build_obstacle(package, "twice.cpp")
