"""Training that the cells of a run share: done by the first that needs it, in any process."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from torch import nn

from ritornello.common.cache import file_lock

Model = TypeVar("Model", bound=nn.Module)


def train_once(
    weights: Path, *, train: Callable[[], nn.Module], build: Callable[[], Model]
) -> Model:
    """A trained model, from its file or, where there is none yet, trained under a lock.

    Who trains and who only reads get the same: a freshly built model with the file's weights.

    Args:
        weights: the file (safetensors); whole or not there.
        train: builds and trains a model.
        build: an untrained model of the same kind, on the CPU.
    """
    from safetensors.torch import load_model, save_model

    with file_lock(weights.with_suffix(".lock")):
        if not weights.exists():
            unfinished = weights.with_suffix(".part")
            save_model(train(), str(unfinished))
            unfinished.rename(weights)
    model = build()
    load_model(model, weights)
    return model
