"""The real command: exit status, interruption, two runs at once, sweeps and launchers."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from ritornello.experiments.app import papers

CHEAP = "model_equality_testing"
PAPER = "probe_pruning" if "probe_pruning" in papers() else papers()[0]


def start(*arguments, cwd, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "ritornello", *arguments],
        cwd=cwd,
        **options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ritornello(*arguments, cwd, **options):
    process = start(*arguments, cwd=cwd, **options)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def records(folder):
    return sorted(folder.glob("outputs/*/smoke/*/cells/*.json"))


def measured(folder):
    """Everything that was measured but times."""
    rows = []
    for file in records(folder):
        record = json.loads(file.read_text())["record"]
        rows.append((file.name, [m["metric"] for m in record["measurements"]]))
    return rows


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "which paper"),
        (["experiment=nothing/small"], "unknown paper"),
        ([f"experiment={PAPER}/smoke", "colour=red"], "colour"),
        ([f"experiment={PAPER}/paper", "device=cuda"], "cuda"),
        (["record", "nothing"], "unknown paper"),
        (["-m", f"experiment={PAPER}/smoke", "colour=1,2"], "colour"),
        (["-m", f"experiment={PAPER}/smoke", "threads=1,many"], "many"),
    ],
)
def test_bad_input_is_status_2_and_one_message(arguments, named, tmp_path):
    status, _, err = ritornello(*arguments, cwd=tmp_path)
    assert status == 2
    assert named in err.lower()
    assert "Traceback" not in err
    assert not (tmp_path / "outputs").exists()


def test_the_command_answers_without_importing_torch():
    """What takes seconds to import comes in when it is needed."""
    code = (
        "import sys; import ritornello.experiments.command;"
        "heavy = {'torch', 'numpy', 'pandas', 'scipy', 'hydra', 'transformers', 'lightning',"
        " 'matplotlib', 'wandb', 'optuna', 'ray', 'rich'};"
        "assert not heavy & set(sys.modules), sorted(heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_options_may_stand_among_the_overrides(tmp_path):
    words = (f"experiment={PAPER}/smoke", "--cfg", "job", "threads=3")
    status, out, err = ritornello(*words, cwd=tmp_path)
    assert status == 0, err
    assert "threads: 3" in out


def test_the_paper_profile_says_that_there_is_no_network(tmp_path):
    status, _, err = ritornello(f"experiment={PAPER}/paper", "device=cpu", cwd=tmp_path)
    assert status == 2, err
    assert "hf download" in err


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_goes_on(tmp_path):
    process = start(f"experiment={PAPER}/smoke", "workers=2", cwd=tmp_path)
    deadline = time.monotonic() + 300
    while not records(tmp_path) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.1)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGINT)  # twice, as people do
    _, err = process.communicate(timeout=120)
    kept = records(tmp_path)
    assert kept
    if process.returncode != 0:  # it may have been through by then
        assert process.returncode in (130, -signal.SIGINT)
        assert "Traceback" not in err
    stamps = {file: file.stat().st_mtime_ns for file in kept}
    status, out, err = ritornello(f"experiment={PAPER}/smoke", "workers=2", cwd=tmp_path)
    assert status == 0, err
    assert "cells are already measured" in out
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in stamps.items())


def test_ctrl_c_ends_a_whole_sweep(tmp_path):
    arguments = ("-m", f"experiment={CHEAP}/smoke", "parts.unbiasedness.seeds=[0],[1],[2]")
    process = start(*arguments, cwd=tmp_path)
    deadline = time.monotonic() + 300
    while not records(tmp_path) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert err.count("interrupted") == 1
    assert len(list((tmp_path / "outputs" / CHEAP / "smoke").iterdir())) == 1


def test_two_commands_share_the_cells_when_both_say_so(tmp_path):
    arguments = (f"experiment={PAPER}/smoke", "cooperative=true")
    processes = [start(*arguments, f"worker={i}", cwd=tmp_path) for i in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, out + err
    (run,) = (tmp_path / "outputs" / PAPER / "smoke").iterdir()
    assert not json.loads((run / "verdicts.json").read_text())["missing"]


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "ray_local"])
def test_launchers_divide_one_configuration(launcher, tmp_path):
    plugin = {"ray_local": "ray", "submitit_local": "submitit"}.get(launcher, launcher)
    pytest.importorskip(f"hydra_plugins.hydra_{plugin}_launcher", reason="extra cluster")
    status, out, err = ritornello(
        "-m",
        f"experiment={CHEAP}/smoke",
        "cooperative=true",
        "worker=0,1",
        f"hydra/launcher={launcher}",
        f"outputs={tmp_path / 'outputs'}",
        cwd=tmp_path,
    )
    assert status == 0, out + err
    (run,) = (tmp_path / "outputs" / CHEAP / "smoke").iterdir()
    content = json.loads((run / "verdicts.json").read_text())
    assert not content["missing"]
    assert not content["failures"]


@pytest.mark.parametrize(
    "moment", ["hydra.main", "torch", "numpy", "ritornello.experiments.command"]
)
def test_ctrl_c_at_the_start_is_one_message(moment, tmp_path):
    """An import must not swallow it, and Hydra must not show a traceback."""
    script = tmp_path / "interrupted.py"
    script.write_text(
        f"""
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {moment!r}:
            os.kill(os.getpid(), signal.SIGINT)
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.meta_path.insert(0, Interrupting())
    from ritornello.__main__ import main
    main()
"""
    )
    command = [sys.executable, str(script), f"experiment={CHEAP}/smoke"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 130, done.stderr
    assert done.stderr.strip().startswith("ritornello: interrupted")
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [("list", "a", "b"), ("report", "a", "b"), ("record", PAPER, "a", "b"), ("record",)],
)
def test_a_command_with_the_wrong_words_is_told(arguments, tmp_path):
    status, _, err = ritornello(*arguments, cwd=tmp_path)
    assert status == 2, err
    assert not list(tmp_path.iterdir())


def test_a_command_asked_for_help_gives_it(tmp_path):
    status, out, _ = ritornello("report", "--help", cwd=tmp_path)
    assert status == 0
    assert "record <paper>" in out
    assert not list(tmp_path.iterdir())


def test_a_run_of_some_parts_says_what_it_left_out(tmp_path):
    """`record` refuses a run in which cells are missing."""
    arguments = (f"experiment={CHEAP}/smoke", "only.parts=[unbiasedness]")
    status, out, err = ritornello(*arguments, cwd=tmp_path)
    assert status == 0, err
    (verdicts,) = tmp_path.glob("outputs/*/smoke/*/verdicts.json")
    missing = json.loads(verdicts.read_text())["missing"]
    assert missing
    assert f"({missing} left out)" in out


def test_a_disk_without_room_for_the_first_file_is_one_message(tmp_path):
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # noqa: E731
    status, _, err = ritornello(f"experiment={CHEAP}/smoke", cwd=tmp_path, preexec_fn=full)
    assert status == 2
    assert "File too large" in err
    assert "config.yaml" in err
    assert len(err.strip().splitlines()) == 1


def test_a_terminal_that_knows_no_greek_shows_the_rest(tmp_path):
    status, out, err = ritornello(
        "list", cwd=tmp_path, env=os.environ | {"PYTHONIOENCODING": "ascii"}
    )
    assert status == 0, err
    assert "Unit-Scaled" in out
