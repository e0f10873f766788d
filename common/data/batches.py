"""Which rows make up a batch, as a function of its number: a resumed run draws the same ones."""

import torch
from jaxtyping import Int
from torch import Tensor


def epoch_rows(count: int, batch_size: int, number: int, seed: int) -> Int[Tensor, "rows"]:
    """Rows of batch `number`; every epoch goes through all rows once, in an order of its own.

    Args:
        count: how many rows there are.
        batch_size: rows of a batch; an epoch leaves out what does not fill one, and has a single
            smaller batch where there are fewer rows.
        number: of the batch, from 0 through all epochs.
        seed: of the orders.
    """
    epoch, place = divmod(number, max(count // batch_size, 1))
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(count, generator=generator)
    return order[place * batch_size :][:batch_size]
