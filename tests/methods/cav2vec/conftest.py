"""Lets the tests of this folder import the golden recipe, and keeps made speech out of the home."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def speech_cache(tmp_path_factory, monkeypatch):
    """One cache folder for the whole session of this process."""
    monkeypatch.setenv("RITORNELLO_CACHE", str(tmp_path_factory.getbasetemp() / "speech-cache"))
