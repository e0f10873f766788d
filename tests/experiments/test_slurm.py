"""A sweep through a real Slurm: its own daemons on this machine, its own ports and folders."""

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

BINARIES = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
PAPER = "model_equality_testing"
# The node claims more than a test machine has, so that the launcher's own sizes are accepted.
CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 RealMemory=70000
PartitionName=papers Nodes=ALL Default=NO MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A cluster of this one machine; commands find it through SLURM_CONF."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="extra cluster")
    search = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    found = {name: shutil.which(name, path=search) for name in BINARIES}
    if missing := [name for name, path in found.items() if path is None]:
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)}")
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname().split(".")[0],
            folder=folder,
            user=getpass.getuser(),
            controller=free_port(),
            node=free_port(),
        )
    )
    monkeypatch.setenv("SLURM_CONF", str(configuration))
    munge = [f"--{n}-file={folder / f'munge.{n}'}" for n in ("key", "pid", "log", "seed")]
    commands = {
        "munged": ["--foreground", "--force", f"--socket={folder / 'munge.socket'}", *munge],
        "slurmctld": ["-D", "-c"],
        "slurmd": ["-D", "-c"],
    }
    daemons = []
    try:
        for name, arguments in commands.items():
            with (folder / f"{name}.out").open("w") as out:
                daemons.append(subprocess.Popen([found[name], *arguments], stdout=out, stderr=out))
            if name == "munged":
                wait_for(lambda: (folder / "munge.socket").exists())
        ready = wait_for(lambda: "idle" in output(found["sinfo"], "-h", "-o", "%T"))
        if not ready:
            said = "".join((folder / f"{name}.out").read_text()[-1000:] for name in commands)
            if os.geteuid() != 0:
                pytest.skip(f"Slurm's daemons did not start without root: {said}")
            pytest.fail(f"Slurm's daemons did not start: {said}")
        yield folder
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(timeout=60)


def wait_for(condition, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.2)
    return False


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def test_two_slurm_jobs_divide_one_configuration(slurm, tmp_path):
    outputs = tmp_path / "outputs"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ritornello", "-m", f"experiment={PAPER}/smoke"),
            *("cooperative=true", "worker=0,1", f"outputs={outputs}"),
            *("hydra/launcher=slurm_cpu", "hydra.launcher.partition=papers"),
            "hydra.launcher.account=lab",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (outputs / PAPER / "smoke").iterdir()
    content = json.loads((run / "verdicts.json").read_text())
    assert not content["missing"]
    assert not content["failures"]
    scripts = list((outputs / "multirun").glob("*/.submitit/*/*_submission.sh"))
    assert scripts
    assert all("--partition=papers" in script.read_text() for script in scripts)
    # Both were Slurm's jobs; the sweep may be through before Slurm has noted their ends.
    log = slurm / "slurmctld.out"
    assert wait_for(lambda: log.read_text().count("WEXITSTATUS 0") == 2), log.read_text()[-2000:]
