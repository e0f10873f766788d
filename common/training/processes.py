"""Several processes for one training: what torchrun does for a script, done for a function."""

import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

_PR_SET_PDEATHSIG = 1


def started_from_outside() -> bool:
    """Whether torchrun, or another launcher that sets its variables, made this process."""
    return "RANK" in os.environ and "LOCAL_RANK" in os.environ


@contextmanager
def companions(function: Callable[[], Any], *, first: int, processes: int) -> Iterator[list[Any]]:
    """Runs `function` as ranks `first` to `processes - 1`, and the block as rank 0 if first is 1.

    `function` may be a closure. The companions end with the block, and with this process.

    Raises:
        RuntimeError: a companion ended before it could begin.
    """
    import cloudpickle

    payload = cloudpickle.dumps(function)
    # spawn: a forked torch process may hang, and cannot use a GPU.
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children, pipes = [], []
    try:
        for rank in range(first, processes):
            ours, theirs = context.Pipe()
            place = _place(rank, processes, port)
            child = context.Process(
                target=_companion, args=(payload, place, torch.get_num_threads(), theirs)
            )
            child.start()
            theirs.close()
            children.append(child)
            pipes.append(ours)
        for child, pipe in zip(children, pipes, strict=True):
            wait([pipe, child.sentinel])
            if not pipe.poll():
                raise RuntimeError(f"a training process ended with status {child.exitcode}")
        with _variables(_place(0, processes, port) if first == 1 else {}):
            yield children
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        for child in children:
            child.kill()
            child.join()


def join(children: list[Any]) -> None:
    """Waits for companions that work alone.

    Raises:
        RuntimeError: one failed; its own traceback is on the standard error.
    """
    running = {child.sentinel: child for child in children}
    while running:
        for sentinel in wait(list(running)):
            child = running.pop(sentinel)  # type: ignore[arg-type]
            child.join()
            if child.exitcode:
                raise RuntimeError(f"a training process ended with status {child.exitcode}")


def across_nodes(function: Callable[[], Any], folder: Path, *, nodes: int, processes: int) -> None:
    """Runs `function` as all ranks, on the nodes of the Slurm job that this process is in.

    Args:
        folder: one that all nodes see.
        nodes: of the job; the processes are divided evenly among them.

    Raises:
        RuntimeError: a process failed; its own traceback is on the standard error.
    """
    import cloudpickle

    payload = folder / "function.pkl"
    payload.write_bytes(cloudpickle.dumps(function))
    sizes = [f"--nodes={nodes}", f"--ntasks={processes}", f"--ntasks-per-node={processes // nodes}"]
    task = [sys.executable, "-m", "ritornello.common.training.processes", str(payload)]
    done = subprocess.run(["srun", "--overlap", "--kill-on-bad-exit=1", *sizes, *task])
    if done.returncode:
        raise RuntimeError(f"srun ended with status {done.returncode}")


def _place(rank: int, processes: int, port: int) -> dict[str, str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "MASTER_PORT": port}
    sizes = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    return {k: str(v) for k, v in (names | sizes).items()} | {"MASTER_ADDR": "127.0.0.1"}


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _companion(payload: bytes, place: dict[str, str], threads: int, ready: Any) -> None:
    import cloudpickle

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(place)
    torch.set_num_threads(threads)
    function = cloudpickle.loads(payload)
    ready.send(True)
    function()


if __name__ == "__main__":
    # A task of `across_nodes`: Lightning reads its rank and the nodes from Slurm's variables.
    import pickle

    pickle.loads(Path(sys.argv[1]).read_bytes())()
