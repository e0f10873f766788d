"""Runs a plan: worker processes, progress, failures, interruption."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ritornello.common.runs.experiment import Cell
from ritornello.common.runs.plan import Plan
from ritornello.common.runs.provenance import environment, revision, source_digest
from ritornello.common.runs.store import RunDirectory, UnwritableError
from ritornello.common.runs.worker import UNWRITABLE, measure_cells, work

Build = Callable[[dict[str, Any]], Plan]


@dataclass
class Outcome:
    """What a run left in its directory.

    Attributes:
        records: of every finished cell of the plan, those of earlier runs included.
        failures: why cells of this run failed.
        missing: cells of this run that are not measured.
        left_out: cells that are not measured because `only` did not choose them.
    """

    records: list[dict[str, Any]]
    failures: dict[str, str]
    missing: list[Cell] = field(default_factory=list)
    left_out: list[Cell] = field(default_factory=list)


def run(
    build: Build,
    config: dict[str, Any],
    directory: Path,
    *,
    workers: int = 1,
    threads: int = 1,
    only: dict[str, Any] | None = None,
    fresh: bool = False,
    cooperative: bool = False,
    say: Callable[[str], None] = lambda line: None,
    progress: Callable[[list[Cell], Callable[[], list[dict]], int], Any] | None = None,
) -> Outcome:
    """Measures every cell that is not recorded yet and reads all records.

    Args:
        build: makes the plan from the configuration; importable, since workers call it too.
        config: plain dictionaries.
        directory: the run directory.
        workers: processes; 1 measures in this one.
        threads: torch threads in each.
        only: `parts`, `arms`, `seeds` to restrict the run to.
        fresh: measure again what is recorded.
        cooperative: share the directory with other runs that say so too.
        say: shows a line to the user.
        progress: makes a context manager with `update()`, from the cells, a reader of their
            records and the number of workers.

    Raises:
        UserError: bad values, an unwritable or locked directory, or what `prepare` found.
    """
    import torch

    plan = build(config)
    cells = plan.cells(**(only or {}))
    store = RunDirectory(directory)
    store.create()
    with store.lock(shared=cooperative):
        store.forget_failures(cells)
        if fresh:
            store.forget(cells)
        stamp = {"revision": revision(), "source": source_digest(plan.paper)}
        stamp["environment"] = environment()
        _report_resumed(store, cells, stamp["source"], say)
        pending = [c for c in cells if not store.is_finished(c)]
        if pending:
            torch.set_num_threads(threads)
            # arms look for servers, parts may generate for hours
            for name, arm in {(c.part, c.arm): None for c in pending}:
                prepare = getattr(plan.parts[name].arms[arm], "prepare", None)
                if prepare is not None:
                    prepare()
            for name in {c.part: None for c in pending}:
                plan.parts[name].measure.prepare()

            known: dict[str, dict[str, Any]] = {}

            def read() -> list[dict[str, Any]]:
                """Records so far; each file is read once."""
                for cell in cells:
                    if cell.key not in known and store.is_finished(cell):
                        known[cell.key] = store.read(cell) or {}
                return [record for record in known.values() if record]

            with progress(cells, read, workers) if progress else _Silent() as bar:
                if workers == 1:
                    measure_cells(plan, store, pending, threads, stamp, bar.update)
                else:
                    _Pool(build, config, store, pending, workers, threads, stamp, say).run(bar)
        planned = plan.cells()
        records = [r for c in planned if (r := store.read(c)) is not None]
        failures = {str(c): why for c in cells if (why := store.failure(c))}
        open_cells = {c.key: c for c in planned if not store.is_finished(c)}
        missing = [open_cells.pop(c.key) for c in cells if c.key in open_cells]
    return Outcome(records, failures, missing, list(open_cells.values()))


def _report_resumed(
    store: RunDirectory, cells: list[Cell], source: str, say: Callable[[str], None]
) -> None:
    records = [r for c in cells if (r := store.read(c)) is not None]
    if not records:
        return
    other = sum(r.get("source") != source for r in records)
    note = f" ({other} of them with other code: fresh=true measures again)" if other else ""
    say(f"{len(records)} of {len(cells)} cells are already measured{note}")


class _Silent:
    def __enter__(self) -> "_Silent":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self) -> None:
        pass


class _Pool:
    """Worker processes that divide the cells among themselves by their locks."""

    def __init__(
        self,
        build: Build,
        config: dict[str, Any],
        store: RunDirectory,
        cells: list[Cell],
        workers: int,
        threads: int,
        stamp: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self.store, self.cells, self.say = store, cells, say
        self.size = min(workers, len(cells))
        self.arguments = (build, config, store.path, cells, threads, os.getpid(), stamp)
        # spawn: a forked torch or tokenizers process may hang.
        self.processes = multiprocessing.get_context("spawn")
        self.environment = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}

    def run(self, bar: Any) -> None:
        alive = [self._start() for _ in range(self.size)]
        try:
            while alive:
                time.sleep(0.1)
                bar.update()
                for process in [p for p in alive if not p.is_alive()]:
                    alive.remove(process)
                    number = (process.exitcode or 0) - UNWRITABLE
                    if number > 0:
                        places = f"{self.store.path}, the cache or TMPDIR"
                        raise UnwritableError(places, OSError(number, os.strerror(number)))
                    if process.exitcode and self._note_death(process):
                        alive.append(self._start())
        finally:
            # A second Ctrl-C must not leave a worker behind, for which the interpreter would wait.
            main = threading.current_thread() is threading.main_thread()
            before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
            for process in alive:
                process.kill()
            for process in alive:
                process.join()
            if main:
                signal.signal(signal.SIGINT, before)
        bar.update()

    def _start(self) -> Any:
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        process = self.processes.Process(target=work, args=self.arguments, daemon=False)
        process.start()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        return process

    def _note_death(self, process: Any) -> bool:
        """Marks the dead worker's cell as failed; True when another should take its place."""
        lost = self.store.claimed_by(process.pid, self.cells)
        code = process.exitcode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        hint = " (out of memory?)" if code == -9 else ""
        for cell in lost:
            self.store.fail(cell, f"its worker {how}{hint}")
        places = f" in {', '.join(map(str, lost))}" if lost else " before it measured anything"
        self.say(f"a worker {how}{hint}{places}")
        return bool(lost)
