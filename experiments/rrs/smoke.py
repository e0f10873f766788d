"""What the smoke profile uses in place of a real tokenizer."""

from collections.abc import Callable


def character_tokenizer() -> Callable[..., dict[str, list[int]]]:
    """One token per character, 256 of them, called like a transformers tokenizer."""

    def tokenize(text: str, *, add_special_tokens: bool = False) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) % 256 for character in text]}

    return tokenize
