"""A real Slurm of two nodes, both this machine: own daemons, own ports, own folders.

A sweep's jobs divide one configuration, and one training goes over both nodes.
"""

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
# The nodes claim more than a test machine has, so that the launcher's own sizes are accepted.
CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs=16 RealMemory=70000
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={two} CPUs=16 RealMemory=70000
PartitionName=papers Nodes=ALL Default=NO MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A cluster that is this machine twice; commands find it through SLURM_CONF."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="extra cluster")
    search = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    found = {name: shutil.which(name, path=search) for name in BINARIES}
    if missing := [name for name, path in found.items() if path is None]:
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)}")
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
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
            one=free_port(),
            two=free_port(),
        )
    )
    monkeypatch.setenv("SLURM_CONF", str(configuration))
    munge = [f"--{n}-file={folder / f'munge.{n}'}" for n in ("key", "pid", "log", "seed")]
    commands = {
        "munged": ["--foreground", "--force", f"--socket={folder / 'munge.socket'}", *munge],
        "slurmctld": ["-D", "-c"],
        "slurmd": ["-D", "-c", "-N", "one"],
        "slurmd two": ["-D", "-c", "-N", "two"],
    }
    daemons = []
    try:
        for name, arguments in commands.items():
            with (folder / f"{name}.out").open("w") as out:
                daemons.append(
                    subprocess.Popen([found[name.split()[0]], *arguments], stdout=out, stderr=out)
                )
            if name == "munged":
                wait_for(lambda: (folder / "munge.socket").exists())
        ready = wait_for(lambda: output(found["sinfo"], "-h", "-o", "%D %T") == "2 idle\n")
        if not ready:
            said = "".join((folder / f"{name}.out").read_text()[-1000:] for name in commands)
            if os.geteuid() != 0:
                pytest.skip(f"Slurm's daemons did not start without root: {said}")
            pytest.fail(f"Slurm's daemons did not start: {said}")
        yield folder
        # Jobs of a failed test must not outlive the daemons.
        subprocess.run(["scancel", f"--user={getpass.getuser()}"], timeout=60)
        wait_for(lambda: not output("squeue", "-h"), seconds=30)
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


TRAINING = """
import json, sys
from pathlib import Path
import torch
from lightning.pytorch import LightningModule
from ritornello.common.training import fit

class Line(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return (self.net(batch) - batch.sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)

def batch(number):
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(number))

def train(**options):
    module = Line()
    losses = fit(module, batch, steps=4, **options).losses
    return losses, module.net.weight.tolist()

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    there = train(num_nodes=2, strategy="ddp", scratch=folder)
    (folder / "there.json").write_text(json.dumps(there))
"""


def test_one_training_goes_over_two_nodes(slurm, tmp_path, monkeypatch):
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # the nodes' names are no addresses here
    log = tmp_path / "job.out"
    job = ["sbatch", "--wait", "--partition=papers", "--nodes=2", "--ntasks=2", f"--output={log}"]
    wrapped = f"{sys.executable} {script} {tmp_path}"
    done = subprocess.run([*job, f"--wrap={wrapped}"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr + log.read_text()
    losses, weight = json.loads((tmp_path / "there.json").read_text())
    monkeypatch.delenv("MASTER_ADDR")
    space: dict = {"__name__": "training"}
    exec(TRAINING, space)
    alone, expected = space["train"](accumulate=2)
    pairs = [(a + b) / 2 for a, b in zip(alone[::2], alone[1::2], strict=True)]
    assert losses == pytest.approx(pairs, rel=1e-5)
    assert weight[0] == pytest.approx(expected[0], rel=1e-5)
    assert (slurm / "slurmctld.out").read_text().count("NodeList=one,two") == 1
