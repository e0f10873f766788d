"""ROAR: a judge retrained from scratch for every explainer, on inputs that it has emptied."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ritornello.methods.f_fidelity.curves import removal_rank
from ritornello.methods.f_fidelity.finetune import Batches
from ritornello.methods.f_fidelity.removal import Inputs, RemovalSpec, num_examples, take


def roar_batches(
    explanations: Float[Tensor, "examples *grid"],
    x: Inputs,
    y: Int[Tensor, " examples"],
    *,
    batch_size: int,
    removal: RemovalSpec | None = None,
    seed: int = 0,
) -> Batches:
    """Batches in which the top ⌊u·d⌋ elements of the explainer are gone, u ~ U(0, 1) per input.

    Batch i is a function of (seed, i) alone.

    Args:
        explanations: the explainer's scores of the training data.
        x, y: the training data.
        batch_size: inputs per batch, drawn with replacement.
        removal: what an element is and what replaces it; pixels and zero unless given.
        seed: of the draws.

    Raises:
        ValueError: explanations of another shape than the elements.
    """
    removal = removal or RemovalSpec()
    expected = (num_examples(x), *removal.grid(x))
    if tuple(explanations.shape) != expected:
        raise ValueError(
            f"explanations must have the shape {expected}, got {tuple(explanations.shape)}"
        )
    removable = removal.removable(x)
    rank = removal_rank(explanations, removable, "morf")
    elements = removable.sum(1)

    def batch(number: int) -> tuple[Inputs, Tensor]:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        rows = torch.randint(len(y), (batch_size,), generator=generator).to(y.device)
        share = torch.rand(batch_size, generator=generator).to(y.device)
        keep = rank[rows] >= (share * elements[rows]).floor().long()[:, None]
        return removal.apply(take(x, rows), keep), y[rows]

    return batch


def roar(
    train_fn: Callable[[Batches], nn.Module],
    explanations: Float[Tensor, "examples *grid"],
    x: Inputs,
    y: Int[Tensor, " examples"],
    *,
    batch_size: int = 128,
    removal: RemovalSpec | None = None,
    seed: int = 0,
) -> nn.Module:
    """ROAR's judge of one explainer; evaluate it with `fidelity` on test explanations.

    The mask of an explainer tells the class to a judge that is retrained on it: this is why the
    paper replaces it.

    Args:
        train_fn: trains a fresh network on batches and returns it in evaluation mode.

    Other arguments and errors as in `roar_batches`.
    """
    how = {"batch_size": batch_size, "removal": removal, "seed": seed}
    return train_fn(roar_batches(explanations, x, y, **how))
