"""What every test shares: no network, one thread, no writes outside the test's own folder."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    WANDB_MODE="offline",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",
)

import pytest
import torch

torch.set_num_threads(1)

# Folders with modules that several test files import.
_SHARED = (
    "golden",
    "common/evaluation",
    "methods/cav2vec",
    "methods/comm",
    "methods/supercorrect",
)
sys.path[:0] = [str(Path(__file__).parent / folder) for folder in _SHARED]


@pytest.fixture(scope="session")
def golden() -> Path:
    """Reference values, one folder per paper."""
    return Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data kept beside the repository; tests that use it skip without it."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real test data is not here")
    return folder


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


PATIENCE = timedelta(minutes=5)


def _rank(work: Callable, rank: int, meeting: str, pipe) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=PATIENCE
    )
    pipe.send(work(rank))
    # Stays until it is killed: gloo's threads may abort a process at its exit or that of a peer.
    pipe.recv()


@pytest.fixture
def two_ranks(tmp_path: Path) -> Iterator[Callable[[Callable], list]]:
    """Runs work(rank), a function of a module, in two joined processes and gives both answers."""
    context = multiprocessing.get_context("spawn")
    processes = []

    def run(work: Callable) -> list:
        pipes = []
        for rank in range(2):
            ours, theirs = context.Pipe()
            arguments = (work, rank, str(tmp_path / "meeting"), theirs)
            process = context.Process(target=_rank, args=arguments, daemon=True)
            process.start()
            processes.append(process)
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            assert pipe.poll(PATIENCE.total_seconds()), "a process gives no answer"
        return [pipe.recv() for pipe in pipes]  # EOFError: it died

    yield run
    for process in processes:
        process.kill()
        process.join()
