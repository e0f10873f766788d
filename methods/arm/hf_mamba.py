"""Hugging Face's Mamba on our selective scan: its own fallback trains slowly without a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ritornello.common.kernels.selective_scan import selective_scan


@contextmanager
def patch_transformers_mamba() -> Iterator[None]:
    """Within it, transformers' Mamba models scan with `selective_scan`: the same numbers.

    The module-level function is replaced and put back at the end, also after an exception.
    """
    from transformers.models.mamba import modeling_mamba

    original = modeling_mamba.mamba_selective_scan
    modeling_mamba.mamba_selective_scan = _scan
    try:
        yield
    finally:
        modeling_mamba.mamba_selective_scan = original


def _scan(
    *arrays: Any,
    use_mambapy: bool = False,
    use_associative_scan: bool = False,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """transformers' signature: the two choices of its fallback mean nothing here."""
    return selective_scan(*arrays, **options)
