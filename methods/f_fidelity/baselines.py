"""ROAR: a judge retrained from scratch for every explainer, on inputs that it has emptied."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ritornello.methods.f_fidelity.curves import removal_rank
from ritornello.methods.f_fidelity.finetune import Batches
from ritornello.methods.f_fidelity.removal import Inputs, RemovalSpec, num_examples, take


def roar_batches(
    inputs: Inputs,
    labels: Int[Tensor, " examples"],
    scores: Float[Tensor, "examples *grid"],
    *,
    batch_size: int,
    removal: RemovalSpec | None = None,
    seed: int = 0,
) -> Batches:
    """Batches in which the top ⌊u·d⌋ elements of the explainer are gone, u ~ U(0, 1) per input.

    Batch i is a function of (seed, i) alone.

    Args:
        inputs, labels: the training data.
        scores: the explainer's, for the training data.
        batch_size: inputs per batch, drawn with replacement.
        removal: what an element is and what replaces it.
        seed: of the draws.
    """
    removal = removal or RemovalSpec()
    expected = (num_examples(inputs), *removal.grid(inputs))
    if tuple(scores.shape) != expected:
        raise ValueError(f"scores must have the shape {expected}, got {tuple(scores.shape)}")
    removable = removal.removable(inputs)
    rank = removal_rank(scores, removable, "morf")
    elements = removable.sum(1)

    def batch(number: int) -> tuple[Inputs, Tensor]:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        rows = torch.randint(len(labels), (batch_size,), generator=generator).to(labels.device)
        share = torch.rand(batch_size, generator=generator).to(labels.device)
        keep = rank[rows] >= (share * elements[rows]).floor().long()[:, None]
        return removal.apply(take(inputs, rows), keep), labels[rows]

    return batch


def roar(
    train: Callable[[Batches], nn.Module],
    inputs: Inputs,
    labels: Int[Tensor, " examples"],
    scores: Float[Tensor, "examples *grid"],
    *,
    batch_size: int = 128,
    removal: RemovalSpec | None = None,
    seed: int = 0,
) -> nn.Module:
    """ROAR's judge of one explainer; evaluate it with `fidelity` on test explanations.

    The mask of an explainer tells the class to a judge that is retrained on it: this is why the
    paper replaces it.

    Args:
        train: trains a fresh network on batches and returns it in evaluation mode.
    """
    batches = roar_batches(
        inputs, labels, scores, batch_size=batch_size, removal=removal, seed=seed
    )
    return train(batches)
