"""What the user can put right."""


class UserError(ValueError):
    """A bad value, a missing file, no network, no GPU: told in one message, exit status 2."""
