"""What every test shares: no network, one thread, no writes outside the test's own folder."""

import os
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
