"""A search over an experiment's settings by optuna's ask and tell, where a grid is not enough.

A trial is a run of the experiment with overrides; its value is the mean of one metric. The study is
a journal in the outputs, so that several processes add trials to it and a killed search goes on.
"""

import fcntl
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ritornello.common.errors import UserError
from ritornello.common.optional import require
from ritornello.common.reporting import Results
from ritornello.common.runs.store import write_atomically
from ritornello.experiments.app import compose_config, resolve, run_cells, run_directory

if TYPE_CHECKING:
    from optuna import Study, Trial

GOALS = ("minimize", "maximize")
# Overrides that say how a search is run, not what is searched.
_RUNTIME = ("search.trials", "workers", "threads", "outputs")


@dataclass(frozen=True)
class Aim:
    """The `search.` overrides.

    Attributes:
        metric: what is made small or large: its mean over the rows of a trial.
        goal: `minimize` or `maximize`.
        trials: trials of the study in all, those of earlier calls included.
        seed: of the sampler.
    """

    metric: str = ""
    goal: str = "minimize"
    trials: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.metric:
            raise UserError("search.metric=<metric> says what is searched for")
        if self.goal not in GOALS:
            raise UserError(f"search.goal must be one of {', '.join(GOALS)}, got {self.goal!r}")
        if self.trials < 1:
            raise UserError(f"search.trials must be at least 1, got {self.trials}")


def search(arguments: Sequence[str]) -> int:
    """`ritornello search experiment=<paper>/<profile> search.metric=… key='interval(1,2)' …`.

    Ranges are Hydra's: `interval(a, b)`, `range(a, b)` of whole numbers, `choice(a, b, c)`, and
    `tag(log, …)` around one of the first two.

    Raises:
        UserError: a bad range, override or aim, or a metric that no trial measured.
    """
    require("optuna", extra="cluster")
    aim, ranges, fixed = understand(arguments)
    base = resolve(compose_config(fixed))
    root = Path(base["outputs"]).expanduser()
    identity = sorted(a for a in arguments if a.partition("=")[0] not in _RUNTIME)
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
    folder = root / "search" / base["paper"] / digest
    folder.mkdir(parents=True, exist_ok=True)

    def value(chosen: Mapping[str, Any]) -> float:
        overrides = [*fixed, *(f"{k}={v}" for k, v in chosen.items()), f"outputs={folder}/trials"]
        return measure(resolve(compose_config(overrides)), aim.metric)

    study = Journal(folder, aim)
    for number, chosen, found in study.run(ranges, value):
        print(f"trial {number}: {aim.metric} {found:.6g}  {_as_overrides(chosen)}", flush=True)
    best = study.best()
    if best is None:
        print("no trial has ended with a value")
        return 1
    write_atomically(folder / "best.json", json.dumps(best, indent=1))
    print(f"best: {aim.metric} {best['value']:.6g}  {_as_overrides(best['overrides'])}")
    print(f"study: {folder}")
    return 0


def _as_overrides(chosen: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in chosen.items())


def understand(arguments: Sequence[str]) -> tuple[Aim, dict[str, Any], list[str]]:
    """The aim, the ranges by key (Hydra's parsed sweeps) and the overrides of every trial.

    Raises:
        UserError: what cannot be understood, and a search without a range.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    known = {f"search.{field.name}": field for field in fields(Aim)}
    aim: dict[str, Any] = {}
    ranges: dict[str, Any] = {}
    fixed = []
    for argument in arguments:
        key, _, text = argument.partition("=")
        if key.startswith("search."):
            if key not in known:
                raise UserError(f"unknown {key!r}. Known: {', '.join(known)}")
            try:
                aim[known[key].name] = type(known[key].default)(text)
            except ValueError as error:
                raise UserError(f"{key}: {error}") from error
            continue
        try:
            override = OverridesParser.create().parse_override(argument)
        except HydraException as error:
            raise UserError(f"{argument}: {str(error).splitlines()[0]}") from error
        if override.is_sweep_override():
            ranges[key] = override.value()
        else:
            fixed.append(argument)
    if not ranges:
        raise UserError("a search needs a range, such as key='interval(0.1, 1)'")
    return Aim(**aim), ranges, fixed


def suggest(trial: "Trial", key: str, sweep: Any) -> Any:
    """The trial's value within a parsed Hydra sweep."""
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep

    log = "log" in sweep.tags
    try:
        if isinstance(sweep, IntervalSweep):
            return trial.suggest_float(key, float(sweep.start), float(sweep.end), log=log)
        if isinstance(sweep, RangeSweep) and int(sweep.step) == sweep.step:
            # Hydra's range, like Python's, leaves its end out.
            start, step = int(sweep.start), int(sweep.step)
            last = range(start, int(sweep.stop), step)[-1]
            return trial.suggest_int(key, start, last, step=step, log=log)
        if isinstance(sweep, ChoiceSweep):
            return trial.suggest_categorical(key, sweep.list)
    except (ValueError, IndexError, TypeError) as error:
        raise UserError(f"{key}: {error}") from error
    raise UserError(f"{key} must be interval(a, b), range(a, b) or choice(a, b, ...)")


def measure(config: dict[str, Any], metric: str) -> float:
    """Runs a configuration and gives the mean of a metric; nan where a cell failed.

    Raises:
        UserError: the experiment does not measure the metric.
    """
    store = run_directory(config)
    outcome = run_cells(config, store, cooperative=True)
    if outcome.failures or outcome.missing:
        return math.nan
    results = Results.from_records(outcome.records, store.path)
    rows = results.select(metric=metric)
    if rows.empty:
        known = ", ".join(sorted(set(results.table["metric"])))
        raise UserError(f"search.metric={metric!r} is not measured. Measured: {known}")
    return float(rows["value"].mean())


class Journal:
    """A study that processes share; a trial is held by a lock that goes with its process."""

    def __init__(self, folder: Path, aim: Aim) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalStorage

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.folder, self.aim = folder, aim
        backend = JournalFileBackend(
            str(folder / "study.journal"), lock_obj=_JournalLock(folder / "journal.lock")
        )
        with self._alone():
            self.study: Study = optuna.create_study(
                storage=JournalStorage(backend),
                study_name="search",
                direction=aim.goal,
                load_if_exists=True,
            )

    def run(
        self, ranges: Mapping[str, Any], value: Callable[[Mapping[str, Any]], float]
    ) -> Iterator[tuple[int, dict[str, Any], float]]:
        """Takes trials until the study has enough of them; yields number, overrides and value."""
        from optuna.trial import TrialState

        while (taken := self._take(ranges)) is not None:
            trial, lock = taken
            with lock:
                found = value(trial.params)
                if math.isfinite(found):
                    self.study.tell(trial, found)
                else:
                    self.study.tell(trial, state=TrialState.FAIL)
            yield trial.number, trial.params, found

    def best(self) -> dict[str, Any] | None:
        """The best trial so far; None when none has a value."""
        from optuna.trial import TrialState

        if not self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            return None
        trial = self.study.best_trial
        return {"trial": trial.number, "value": trial.value, "overrides": trial.params}

    def _take(self, ranges: Mapping[str, Any]) -> "tuple[Trial, IO[str]] | None":
        """A trial that a dead process left, or a new one; None when there are enough."""
        import optuna

        with self._alone():
            trials = self.study.get_trials(deepcopy=False)
            for left in trials:
                if left.state == optuna.trial.TrialState.RUNNING and (
                    lock := _lock(self.folder / f"trial-{left.number}.lock")
                ):
                    trial = optuna.Trial(self.study, left._trial_id)
                    break
            else:
                if len(trials) >= self.aim.trials:
                    return None
                # A sampler for each trial: the same suggestions after a resume.
                self.study.sampler = optuna.samplers.TPESampler(
                    seed=(self.aim.seed * 1_000_003 + len(trials)) % 2**32
                )
                trial = self.study.ask()
                lock = _lock(self.folder / f"trial-{trial.number}.lock")
            assert lock is not None
            for key, sweep in ranges.items():
                suggest(trial, key, sweep)
            return trial, lock

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.folder / "study.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _lock(path: Path) -> IO[str] | None:
    handle = path.open("a")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle


class _JournalLock:
    """Optuna's lock on its journal, which a killed process gives back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle: IO[str] | None = None

    def acquire(self) -> bool:
        self.handle = self.path.open("a")
        fcntl.flock(self.handle, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        assert self.handle is not None
        self.handle.close()
