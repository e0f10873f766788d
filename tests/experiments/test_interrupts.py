"""Ctrl-C ends a run whatever the interpreter is doing when it comes."""

import signal
import time

import pytest

from ritornello.experiments import interrupts


class EndsBadly:
    """Ctrl-C comes while its destructor runs, which swallows exceptions."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_swallowed_by_a_destructor_comes_again():
    before = signal.signal(signal.SIGINT, interrupts._leave)
    survived = []

    def run():
        with interrupts.interruptible():
            EndsBadly()
            survived.append("the destructor")
            time.sleep(30)
            survived.append("everything")

    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert survived == ["the destructor"]
