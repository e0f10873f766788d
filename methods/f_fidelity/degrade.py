"""Explainers of known rank: an explanation with a share of its scores permuted."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def degrade(
    scores: Float[Tensor, "batch *grid"],
    p: float,
    generator: torch.Generator | np.random.RandomState | np.random.Generator | None = None,
) -> Float[Tensor, "batch *grid"]:
    """Permutes ⌊p·d⌋ randomly chosen scores of every explanation among themselves.

    Quality falls with p: the ground truth of the ranking is 1 − p.

    Args:
        scores: explanations; a vector is a single one.
        p: share of the elements in [0, 1]; 0 returns the same scores.
        generator: of torch; or of NumPy, of which a RandomState draws as the published script does
            (`choice` without replacement, then `permutation`, input by input).

    Raises:
        ValueError: p out of range.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must be in [0, 1], got {p}")
    flat = scores.reshape(1 if scores.ndim == 1 else len(scores), -1)
    d = flat.shape[1]
    moved = int(p * d)
    if isinstance(generator, np.random.RandomState | np.random.Generator):
        rows = []
        for _ in range(len(flat)):
            chosen = generator.choice(d, moved, replace=False)
            rows.append((chosen, generator.permutation(chosen)))
        to, source = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
    else:
        device = generator.device if generator is not None else scores.device
        to = torch.rand(len(flat), d, generator=generator, device=device).argsort(1)[:, :moved]
        shuffled = torch.rand(len(flat), moved, generator=generator, device=device).argsort(1)
        source = to.gather(1, shuffled)
    to, source = to.to(flat.device), source.to(flat.device)
    return flat.scatter(1, to, flat.gather(1, source)).view_as(scores)
