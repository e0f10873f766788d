"""`python -m ritornello` is the same command as `ritornello`."""

from ritornello.experiments.app import main

if __name__ == "__main__":
    main()
