"""A finished cell is never lost, a killed run goes on, two runs do not disturb one another."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ritornello.common.runs import Cell, Measurement, RunDirectory, RunLockedError, UserError, run

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    import toy_experiment

    return toy_experiment


def table(records):
    rows = [(r["cell"]["arm"], r["cell"]["seed"], str(r["cell"]["coordinates"])) for r in records]
    values = [[m["value"] for m in r["measurements"]] for r in records]
    return sorted(zip(rows, values, strict=True))


def test_every_number_of_workers_measures_the_same(toy, tmp_path):
    one = run(toy.build, {}, tmp_path / "one", workers=1)
    two = run(toy.build, {}, tmp_path / "two", workers=2)
    assert len(one.records) == 12
    assert not one.failures
    assert not one.missing
    assert table(one.records) == table(two.records)


def test_finished_cells_are_not_measured_again(toy, tmp_path):
    run(toy.build, {}, tmp_path, only={"arms": ["plain"], "seeds": [0]})
    before = {f: f.stat().st_mtime_ns for f in (tmp_path / "cells").iterdir()}
    assert len(before) == 2
    said = []
    outcome = run(toy.build, {}, tmp_path, say=said.append)
    assert len(outcome.records) == 12
    assert all(f.stat().st_mtime_ns == t for f, t in before.items())
    assert said == ["2 of 12 cells are already measured"]
    run(toy.build, {}, tmp_path, fresh=True)
    assert all(f.stat().st_mtime_ns > t for f, t in before.items())


def test_a_run_of_some_cells_keeps_the_others_in_its_results(toy, tmp_path):
    some = run(toy.build, {}, tmp_path, only={"arms": ["plain"]})
    assert (len(some.records), len(some.missing), len(some.left_out)) == (6, 0, 6)
    other = run(toy.build, {}, tmp_path, only={"arms": ["shifted"], "seeds": [0]})
    assert (len(other.records), len(other.missing), len(other.left_out)) == (8, 0, 4)
    assert not run(toy.build, {}, tmp_path).left_out


def test_cells_are_planned_once_and_some_are_chosen(toy, tmp_path):
    with pytest.raises(UserError, match=r"seed=3 .*is planned 2 times"):
        run(toy.build, {"seeds": [3, 3]}, tmp_path)
    for only in ({"arms": []}, {"parts": []}, {"seeds": []}):
        with pytest.raises(UserError, match="no cell is left"):
            run(toy.build, {}, tmp_path, only=only)


def test_records_carry_provenance(toy, tmp_path):
    record = run(toy.build, {}, tmp_path, only={"seeds": [0]}).records[0]
    assert record["environment"]["packages"]["torch"]
    assert record["used"]["peak_memory_mib"] > 10
    assert set(record["used"]) >= {"wall_seconds", "cpu_seconds"}
    assert len(record["source"]) == 16


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_arm_leaves_the_others(toy, tmp_path, workers):
    trap = tmp_path / "trap"
    trap.write_text("raise")
    config = {"trap": str(trap), "seeds": [0]}
    outcome = run(toy.build, config, tmp_path / "run", workers=workers)
    assert len(outcome.records) == 2
    assert len(outcome.failures) == len(outcome.missing) == 2
    assert all("a bug in this arm" in why for why in outcome.failures.values())
    trap.unlink()
    again = run(toy.build, config, tmp_path / "run", workers=workers)
    assert len(again.records) == 4
    assert not again.failures


def test_a_worker_that_is_killed_costs_its_cell_only(toy, tmp_path):
    trap = tmp_path / "trap"
    trap.write_text("die")
    outcome = run(toy.build, {"trap": str(trap), "seeds": [0]}, tmp_path / "run", workers=2)
    assert len(outcome.records) == 2
    assert all("killed by signal 9" in why for why in outcome.failures.values())
    assert len(outcome.failures) == 2


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from ritornello.common.runs import run
import toy_experiment
if __name__ == "__main__":
    print("started", flush=True)
    run(toy_experiment.build, {"pause": 0.05}, Path(sys.argv[2]), workers=int(sys.argv[3]))
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_sigkill_at_random_moments_loses_nothing(toy, tmp_path, workers):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = tmp_path / "run"
    command = [sys.executable, str(script), str(HERE), str(folder), str(workers)]
    dice = random.Random(workers)
    finished = set()
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        deadline = time.monotonic() + 30
        # Wait for progress, so that the kill falls among the cells.
        while len(list((folder / "cells").glob("*.json"))) <= len(finished):
            if process.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = {f.name: f.read_text() for f in (folder / "cells").glob("*.json")}
        assert finished <= set(now)
        for text in now.values():
            json.loads(text)
        finished = set(now)
    resumed = run(toy.build, {"pause": 0.0}, folder)
    unbroken = run(toy.build, {"pause": 0.0}, tmp_path / "unbroken")
    assert table(resumed.records) == table(unbroken.records)


def test_damaged_records_are_measured_again(toy, tmp_path):
    first = run(toy.build, {}, tmp_path)
    files = sorted((tmp_path / "cells").glob("*.json"))
    files[0].write_text(files[0].read_text()[:40])
    files[1].write_text(files[1].read_text().replace('"value": ', '"value": 1'))
    again = run(toy.build, {}, tmp_path)
    assert table(again.records) == table(first.records)
    assert len(list((tmp_path / "cells").glob("*.damaged"))) == 2


def test_a_second_run_on_one_directory_is_told_so(toy, tmp_path):
    store = RunDirectory(tmp_path)
    store.create()
    with store.lock(), pytest.raises(RunLockedError, match=str(os.getpid())):
        run(toy.build, {}, tmp_path)
    assert len(run(toy.build, {}, tmp_path).records) == 12


def test_cooperating_runs_divide_the_cells(toy, tmp_path):
    """Two processes on one directory measure every cell once between them."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("workers=", "cooperative=True, workers="))
    folder = tmp_path / "run"
    command = [sys.executable, str(script), str(HERE), str(folder), "1"]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [p.wait(timeout=120) for p in processes] == [0, 0]
    assert len(list((folder / "cells").glob("*.json"))) == 12


def test_the_cells_of_a_lost_run_are_taken_up_by_the_other(toy, tmp_path):
    script = tmp_path / "script.py"
    text = SCRIPT.replace("workers=", "cooperative=True, workers=").replace("0.05", "1.0")
    script.write_text(text)
    folder = tmp_path / "run"
    command = [sys.executable, str(script), str(HERE), str(folder), "1"]
    lost, other = (subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2))
    deadline = time.monotonic() + 120

    def claims() -> list[Path]:
        """Unfinished cells that the first run holds."""
        return [
            lock
            for lock in (folder / "locks").glob("draws.*")
            if lock.read_text() == str(lost.pid)
            and not (folder / "cells" / f"{lock.name}.json").exists()
        ]

    while not (held := claims()) and time.monotonic() < deadline:
        time.sleep(0.01)
    lost.kill()
    lost.wait()
    assert other.wait(timeout=120) == 0
    assert held
    assert all((folder / "cells" / f"{lock.name}.json").exists() for lock in held)
    assert len(list((folder / "cells").glob("*.json"))) == 12


def test_a_clock_that_jumps_changes_nothing(toy, tmp_path, monkeypatch):
    expected = table(run(toy.build, {}, tmp_path / "steady").records)
    dice = random.Random(0)
    jumping = lambda: dice.uniform(-1e9, 4e9)  # noqa: E731
    monkeypatch.setattr(time, "time", jumping)
    monkeypatch.setattr(time, "time_ns", lambda: int(jumping() * 1e9))
    outcome = run(toy.build, {"pause": 0.02}, tmp_path / "jumping")
    assert table(outcome.records) == expected
    assert all(0.02 <= record["used"]["wall_seconds"] < 60 for record in outcome.records)


def test_durations_come_from_clocks_that_do_not_jump():
    """The calendar is asked for dates only: an answer's, a record's, a server's Retry-After."""
    root = Path(sys.modules["ritornello.common.runs"].__file__).resolve().parents[2]
    users = [
        str(file.relative_to(root))
        for folder in ("common", "methods", "experiments")
        for file in sorted((root / folder).rglob("*.py"))
        if re.search(r"\btime\.time\(|datetime\.now\(|utcnow\(", file.read_text())
    ]
    dates = {"common/chat/cache.py", "common/chat/pacing.py", "methods/magpie/pipeline.py"}
    assert set(users) <= dates


def test_a_read_only_place_is_one_message(toy, tmp_path):
    """The kernel's own tree takes no folder, not even from root; a read-only folder takes none."""
    with pytest.raises(UserError, match="cannot write in /sys/"):
        run(toy.build, {}, Path("/sys/kernel/run"))
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(UserError, match="cannot write in"):
            run(toy.build, {}, tmp_path / "run")
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"record": 1}', "\x00" * 50])
def test_any_rubbish_in_a_record_is_set_aside(toy, tmp_path, content):
    config = {"seeds": [0]}
    first = run(toy.build, config, tmp_path)
    file = sorted((tmp_path / "cells").glob("*.json"))[0]
    file.write_text(content)
    assert table(run(toy.build, config, tmp_path).records) == table(first.records)
    assert file.with_suffix(".damaged").read_text() == content


def test_an_unwritable_directory_is_one_message(toy, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="cannot write in"):
        run(toy.build, {}, blocked / "run")


FULL_DISK = """
import resource, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from ritornello.common.runs import UserError, run
import toy_experiment
if __name__ == "__main__":
    folder = Path(sys.argv[2])
    run(toy_experiment.build, {}, folder, only={"arms": ["plain"]})
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # no file may grow past 100 bytes
    try:
        run(toy_experiment.build, {}, folder, workers=int(sys.argv[3]))
    except UserError as error:
        print(error)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_told_and_finished_cells_stay(toy, tmp_path, workers):
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(FULL_DISK)
    command = [sys.executable, str(script), str(HERE), str(folder), str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "cannot write in" in done.stdout
    assert "File too large" in done.stdout
    assert "finished cells are kept" in done.stdout
    kept = [json.loads(f.read_text()) for f in (folder / "cells").glob("*.json")]
    assert [k["record"]["cell"]["arm"] for k in kept] == ["plain"] * 6
    assert len(run(toy.build, {}, folder).records) == 12


def test_prepare_speaks_before_any_cell(toy, tmp_path):
    with pytest.raises(UserError, match="the data set is not there"):
        run(toy.build, {"trap": "unprepared"}, tmp_path)
    assert not list((tmp_path / "cells").iterdir())


def test_arms_that_have_cells_to_measure_are_prepared_too(toy, tmp_path):
    class Arm(float):
        def prepare(self):
            raise UserError("no server is there")

    plan = toy.build({})
    plan.parts["draws"].arms["shifted"] = Arm(2)
    run(lambda config: plan, {}, tmp_path, only={"arms": ["plain"]})
    with pytest.raises(UserError, match="no server is there"):
        run(lambda config: plan, {}, tmp_path)


@pytest.mark.parametrize(
    ("only", "named"),
    [
        ({"arms": ["plian"]}, "did you mean plain"),
        ({"seeds": [9]}, "0, 1, 2"),
        ({"parts": ["x"]}, "draws"),
    ],
)
def test_unknown_names_are_told_with_what_is_known(toy, tmp_path, only, named):
    with pytest.raises(UserError, match=named):
        run(toy.build, {}, tmp_path, only=only)


def test_a_value_that_is_not_the_mean_of_its_samples_is_refused():
    with pytest.raises(ValueError, match="score"):
        Measurement("score", 2.0, samples=[1.0, 1.0]).as_record()
    assert Measurement("ppl", 1.0, samples=[0.0, 0.0], aggregate="exp_mean").as_record()


def test_cell_keys_differ_with_every_field():
    cells = [
        Cell("a", "x", 0),
        Cell("b", "x", 0),
        Cell("a", "y", 0),
        Cell("a", "x", 1),
        Cell("a", "x", 0, {"bits": 4}),
        Cell("a", "x", 0, {"bits": 8}),
    ]
    assert len({c.key for c in cells}) == len(cells)
    assert Cell("a", "x", 0, {"p": 1, "q": 2}).key == Cell("a", "x", 0, {"q": 2, "p": 1}).key
