"""Ctrl-C: one message and status 130, whenever it comes."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MESSAGE = "\nritornello: interrupted; finished cells are kept, the same command continues\n"
STATUS = 130


def leave_at_once() -> None:
    """From now on Ctrl-C ends the process there and then, unless it is ignored (`nohup`, `&`).

    An exception in the middle of an import may be swallowed: torch does so while it loads NumPy,
    and all that follows would run with half of it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, Ctrl-C raises KeyboardInterrupt: there are workers to end and a bar to put away."""
    if signal.getsignal(signal.SIGINT) is not _leave:
        yield
        return
    hook, received = sys.unraisablehook, []

    def interrupt(*_: Any) -> None:
        received.append(signal.SIGINT)
        raise KeyboardInterrupt

    def send_again(lost: Any) -> None:
        """What comes while a destructor runs is swallowed there."""
        if lost.exc_type is not KeyboardInterrupt:
            return hook(lost)
        again = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()

    sys.unraisablehook = send_again
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _leave)
        sys.unraisablehook = hook
    if received:  # swallowed in some other place: it ends the command now at the latest
        raise KeyboardInterrupt


def _leave(*_: Any) -> None:
    os.write(2, MESSAGE.encode())
    os._exit(STATUS)
