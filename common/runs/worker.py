"""The process that measures cells, one after another, until none is left."""

import ctypes
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ritornello.common.errors import UserError
from ritornello.common.runs.experiment import Cell
from ritornello.common.runs.plan import Plan
from ritornello.common.runs.provenance import metered
from ritornello.common.runs.store import DISK_ERRORS, RunDirectory, UnwritableError

_PR_SET_PDEATHSIG = 1
# Exit status of a worker that cannot write: this and the system's number of the error.
UNWRITABLE = 100


def work(
    build: Callable[[dict[str, Any]], Plan],
    config: dict[str, Any],
    directory: Path,
    cells: list[Cell],
    threads: int,
    parent: int,
    stamp: dict[str, Any],
) -> None:
    """Entry of a worker process: dies with its parent and leaves Ctrl-C to it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call above
            return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        measure_cells(build(config), RunDirectory(directory), cells, threads, stamp)
    except UnwritableError as error:
        sys.exit(UNWRITABLE + error.errno)


def measure_cells(
    plan: Plan,
    store: RunDirectory,
    cells: list[Cell],
    threads: int,
    stamp: dict[str, Any],
    after_cell: Callable[[], None] = lambda: None,
) -> None:
    """Claims and measures cells until every one is recorded or has failed.

    Several processes may do this on one directory: a cell that another holds is passed over and
    looked at again, so that the cells of a process that dies are taken up.
    """
    import torch

    torch.set_num_threads(threads)
    while True:
        open_cells = [c for c in cells if not store.is_finished(c) and not store.failure(c)]
        if not open_cells:
            return
        took_any = False
        for cell in open_cells:
            handle = store.claim(cell)
            if handle is None:
                continue
            with handle:
                if store.is_finished(cell) or store.failure(cell):
                    continue
                took_any = True
                _measure(plan, store, cell, stamp)
                after_cell()
        if not took_any:
            time.sleep(0.2)


def _measure(plan: Plan, store: RunDirectory, cell: Cell, stamp: dict[str, Any]) -> None:
    part = plan.parts[cell.part]
    try:
        context = store.context(cell)
        seed_global_generators(cell.seed)
        with metered() as used:
            measured = [
                m.as_record() for m in part.measure.measure(part.arms[cell.arm], cell, context)
            ]
        if not measured:
            raise ValueError(f"{type(part.measure).__name__}.measure yielded nothing")
        store.record(
            cell,
            {
                "cell": asdict(cell) | {"coordinates": dict(cell.coordinates)},
                "measurements": measured,
                "inputs": context.inputs,
                "used": used,
                **stamp,
            },
        )
    except UnwritableError:
        raise
    except UserError as error:
        store.fail(cell, str(error))
    except Exception as error:
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
            store.fail(cell, f"out of memory: use fewer workers or a smaller batch ({error})")
        elif isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise UnwritableError(store.path, error) from error
        else:
            store.fail(cell, traceback.format_exc())


def seed_global_generators(seed: int) -> None:
    """Seeds Python's, NumPy's and torch's global generators, for libraries that use them."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
