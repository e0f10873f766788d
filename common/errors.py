"""What the user can put right."""


class UserError(ValueError):
    """A bad value, a missing file, no network, no GPU: told in one message, exit status 2."""


def one_line(error: BaseException) -> str:
    """What an error says, without its line breaks."""
    return " ".join(str(error).split())
