"""C++ kernels built at first use: a source file that ships with the package, a cached library."""

import ctypes
import functools
import hashlib
import importlib.resources
import logging
import os
import platform
import shutil
import subprocess
from pathlib import Path

from ritornello.common.cache import cached_directory

logger = logging.getLogger(__name__)

FLAGS = ("-O3", "-std=c++17", "-march=native", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
LIBRARY = "kernel.so"


class BuildError(RuntimeError):
    """The C++ source could not be compiled or its library not loaded here."""


@functools.cache
def load_library(package: str, source: str) -> ctypes.CDLL:
    """The shared library of a C++ file, built once per content, compiler and processor.

    It is kept in the cache folder (`ritornello.common.cache.cache_root`). Calls through it release
    the GIL. The source exports `extern "C"` functions on plain pointers.

    Args:
        package: dotted name of the package that ships the file.
        source: file name, such as "scan.cpp".

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None or shutil.which(compiler) is None:
        raise BuildError("no C++ compiler was found (c++, g++ or the variable CXX)")
    code = (importlib.resources.files(package) / source).read_bytes()
    name = f"compiled/{Path(source).stem}-{_fingerprint(code, compiler)}"
    try:
        folder = cached_directory(name, lambda folder: _build(code, compiler, folder))
        return ctypes.CDLL(str(folder / LIBRARY))
    except OSError as error:
        raise BuildError(f"{source} cannot be built or loaded: {error}") from error


@functools.cache
def build_obstacle(package: str, source: str) -> str | None:
    """Why the library of a C++ file is not to be had here; None when it is (it is then built)."""
    try:
        load_library(package, source)
    except BuildError as error:
        logger.warning("%s: slower code runs in its place", error)
        return str(error)
    return None


def _fingerprint(code: bytes, compiler: str) -> str:
    """Hash of all that decides the machine code: source, flags, compiler, processor."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    parts = [code, version, " ".join(FLAGS).encode(), platform.machine().encode()]
    return hashlib.sha256(b"\0".join([*parts, features.encode()])).hexdigest()[:20]


def _build(code: bytes, compiler: str, folder: Path) -> None:
    source = folder / "kernel.cpp"
    source.write_bytes(code)
    command = [compiler, *FLAGS, str(source), "-o", str(folder / LIBRARY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{compiler} {' '.join(FLAGS)} failed: {done.stderr.strip()[:500]}")
