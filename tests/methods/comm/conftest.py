"""What several of CoMM's tests start from."""

import pytest

from ritornello.common.runs import CellContext


@pytest.fixture
def context(tmp_path):
    (tmp_path / "artifacts").mkdir()
    return CellContext(tmp_path / "scratch", tmp_path / "artifacts")
