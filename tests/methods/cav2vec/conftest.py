"""Keeps made speech out of the home."""

import numpy as np
import pytest

from ritornello.common.data.speech.av_speech import SyntheticAVSpeech
from ritornello.common.data.speech.mixing import AudioMixer
from ritornello.common.data.speech.noise import make_noise


@pytest.fixture(autouse=True)
def speech_cache(tmp_path_factory, monkeypatch):
    """One cache folder for the whole session of this process."""
    monkeypatch.setenv("RITORNELLO_CACHE", str(tmp_path_factory.getbasetemp() / "speech-cache"))


@pytest.fixture
def clips():
    return SyntheticAVSpeech(8, seed=3, size=24)


@pytest.fixture
def mixer(clips):
    rng = np.random.default_rng(0)
    return AudioMixer([make_noise("babble", 2, rng, utterances=[c.waveform for c in clips])])
