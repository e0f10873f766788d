"""The command `ritornello`, also as `python -m ritornello`."""

from ritornello.experiments.interrupts import leave_at_once


def main() -> None:
    """Entry point: what takes time to import comes after Ctrl-C is seen to."""
    leave_at_once()
    from ritornello.experiments.app import main as command

    command()


if __name__ == "__main__":
    main()
