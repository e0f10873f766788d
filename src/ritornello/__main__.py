"""The command `ritornello`, also as `python -m ritornello`."""

import io
import sys

from ritornello.experiments.interrupts import leave_at_once


def main() -> None:
    """Entry point: what takes time to import comes after Ctrl-C is seen to."""
    leave_at_once()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that does not know μ shows ?
    from ritornello.experiments.command import main as command

    command()


if __name__ == "__main__":
    main()
