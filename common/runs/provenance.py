"""Where a figure comes from: code, versions, machine, time and memory."""

import hashlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "trl",
    "timm",
    "lightning",
    "hydra-core",
    "numpy",
    "scipy",
)


def revision() -> dict[str, Any]:
    """The git revision of the source tree and whether it is dirty; nulls for an installed wheel."""
    root = Path(str(resources.files("ritornello"))).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    tracked = git("ls-files", "--error-unmatch", "ritornello/__init__.py")
    if tracked is None:
        return {"revision": None, "dirty": None}
    return {"revision": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}


def source_digest(paper: str) -> str:
    """A hash over the code behind a paper's figures: its method, its experiment, the core."""
    package = resources.files("ritornello")
    digest = hashlib.sha256()
    for folder in (f"methods/{paper}", f"experiments/{paper}", "common"):
        root = Path(str(package)) / folder
        for path in sorted(root.rglob("*.py")) + sorted(root.rglob("*.cpp")):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def environment() -> dict[str, Any]:
    """Versions and hardware."""
    import torch

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "python": platform.python_version(),
        "packages": versions,
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "gpu": gpu,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


@contextmanager
def metered() -> Iterator[dict[str, float]]:
    """Measures the block: wall and CPU seconds, peak resident memory, peak GPU memory."""
    import torch

    _reset_peak()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    used: dict[str, float] = {}
    wall, cpu = time.monotonic(), time.process_time()
    try:
        yield used
    finally:
        used["wall_seconds"] = round(time.monotonic() - wall, 3)
        used["cpu_seconds"] = round(time.process_time() - cpu, 3)
        used["peak_memory_mib"] = round(_peak() / 2**20, 1)
        if torch.cuda.is_available():
            used["peak_gpu_memory_mib"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)


def _reset_peak() -> None:
    with suppress(OSError):  # without it the peak is that of the process so far
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
