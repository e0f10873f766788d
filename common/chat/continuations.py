"""Where a continuation begins among the tokens of prompt and continuation, for all clients."""

from collections.abc import Callable, Sequence

Encode = Callable[[Sequence[str]], list[list[int]]]


def split_blanks(context: str, index: int) -> tuple[str, str]:
    """The context and the blanks at its end, which belong to what follows.

    Tokenizers join a blank to the word after it.

    Args:
        context: what the continuations follow.
        index: number of the prompt, for messages.

    Raises:
        ValueError: a context of blanks alone: the first token of a text has no probability.
    """
    body = context.rstrip(" ")
    if not body:
        raise ValueError(f"prompt {index} is empty: it needs at least one token to score after")
    return body, context[len(body) :]


def encode_continuations(
    encode: Encode, context: str, options: Sequence[str], *, index: int
) -> tuple[list[int], list[list[int]]]:
    """Token ids of a prompt, and of each continuation as it is written after it.

    The whole is encoded and split at the length of the context's own encoding; a continuation that
    merges into the context's last token is encoded by itself.

    Args:
        encode: token ids of texts, without added special tokens.
        context: rendered prompt.
        options: continuations.
        index: number of the prompt, for messages.

    Raises:
        ValueError: a blank context, or a continuation that is empty or has no token.
    """
    body, blanks = split_blanks(context, index)
    if "" in options:
        raise ValueError(f"continuations[{index}] holds an empty string")
    prompt_ids, *wholes = encode([body, *(body + blanks + option for option in options)])
    continuations = []
    for option, whole in zip(options, wholes, strict=True):
        ids = whole[len(prompt_ids) :] or encode([blanks + option])[0]
        if not ids:
            raise ValueError(f"continuations[{index}] holds {option!r}, which has no tokens")
        continuations.append(ids)
    return prompt_ids, continuations
