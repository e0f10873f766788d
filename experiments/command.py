"""The command `ritornello`: a run, a sweep, a search, the list, the record, the page."""

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from ritornello.common.errors import UserError
from ritornello.common.runs.store import DISK_ERRORS
from ritornello.experiments.app import (
    check_arguments,
    check_known,
    compose_config,
    execute,
    papers,
    resolve,
)
from ritornello.experiments.interrupts import MESSAGE, STATUS
from ritornello.experiments.overrides import constructor_arguments, jobs_of_sweep


def main() -> None:
    """Entry point. Exit status: 0 judged, 1 a cell failed, 2 bad input, 3 `strict` contradicted."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    arguments = sys.argv[1:]
    if arguments and arguments[0] in COMMANDS:
        sys.exit(_guarded(_command, arguments))
    status = _guarded(_prepare, arguments)
    if status:
        sys.exit(status)
    _hydra_main()


def _command(arguments: list[str]) -> int:
    if {"--help", "-h"} & set(arguments):
        print(USAGE)
        return 0
    run, most = COMMANDS[arguments[0]]
    if most is not None and len(arguments) - 1 > most:
        raise UserError(f"{arguments[0]} takes at most {most} words, got {arguments[1:]}\n{USAGE}")
    return run(arguments[1:])


def _prepare(arguments: list[str]) -> int:
    """Checks the command line and puts it into Hydra's words."""
    words = {a.partition("=")[0] for a in arguments}
    if words & {"--help", "-h"} and "experiment" not in words:
        print(USAGE)
        sys.exit(0)
    asks = words & HYDRA_QUESTIONS
    check_arguments(arguments)
    arguments = constructor_arguments(arguments)
    overrides = [a for a in arguments if _is_override(a)]
    # Hydra's parser wants them side by side, whatever options the user wrote between them.
    sys.argv[1:] = [*overrides, *(a for a in arguments if not _is_override(a))]
    if not asks and words & {"-m", "--multirun"}:
        for job in jobs_of_sweep(overrides):
            compose_config([*job, "device=cpu"])  # the GPU may be where the job will run
    elif not asks:
        compose_config(overrides)
    return 0


def _is_override(argument: str) -> bool:
    return not argument.startswith("-") and ("=" in argument or argument.startswith("~"))


def _guarded(function: Any, *arguments: Any) -> int:
    """Runs a function; a UserError is told in one message and becomes status 2."""
    try:
        return function(*arguments) or 0
    except UserError as error:
        print(f"ritornello: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in {*DISK_ERRORS, errno.EACCES, errno.EPERM}:
            raise
        place = error.filename or "a file could not be written"
        print(f"ritornello: {place}: {error.strerror}; finished cells are kept", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        # Leaving already: a second one changes nothing.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(MESSAGE, end="", file=sys.stderr)
        return STATUS


def _hydra_main() -> None:
    import hydra

    statuses: list[int] = []

    @hydra.main(config_path="pkg://ritornello.conf", config_name="reproduce", version_base="1.3")
    def task(cfg: DictConfig) -> int:
        # The jobs of a sweep do not stop one another; the worst of them is the exit status.
        statuses.append(_guarded(lambda: execute(resolve(cfg))))
        if statuses[-1] == STATUS:  # Ctrl-C is for the whole sweep
            sys.exit(STATUS)
        return statuses[-1]

    task()
    sys.exit(max(statuses, default=0))


def _list(arguments: list[str]) -> int:
    from ritornello.experiments.overview import list_papers

    if arguments == ["--names"]:
        print(*papers(), sep="\n")
        return 0
    return list_papers(Path(arguments[0]) if arguments else Path("outputs"))


def _record(arguments: list[str]) -> int:
    from ritornello.experiments.overview import record

    if not arguments:
        raise UserError("usage: ritornello record <paper> [outputs]")
    check_known("paper", arguments[0], papers())
    return record(arguments[0], Path(arguments[1]) if len(arguments) > 1 else Path("outputs"))


def _report(arguments: list[str]) -> int:
    from ritornello.experiments.overview import write_index

    return write_index(Path(arguments[0]) if arguments else Path("outputs"))


def _search(arguments: list[str]) -> int:
    from ritornello.experiments.search import search

    check_arguments(arguments)
    return search(arguments)


# Flags with which Hydra shows something and runs nothing.
HYDRA_QUESTIONS = {
    "--help", "-h", "--hydra-help", "--version", "--info", "-i", "--cfg", "-c",
    "--shell-completion", "-sc",
}  # fmt: skip
USAGE = """ritornello experiment=<paper>/<profile> [key=value ...]   measure, judge, report
ritornello -m experiment=<paper>/<profile> key=a,b        a sweep
ritornello search experiment=... search.metric=... key='interval(0, 1)'
ritornello list | record <paper> | report  [outputs]      papers, recorded results, the page

Keys of an experiment: ritornello experiment=<paper>/<profile> --cfg job"""
# Each with how many words it takes; a search takes overrides.
COMMANDS = {
    "list": (_list, 1),
    "record": (_record, 2),
    "report": (_report, 1),
    "search": (_search, None),
}
