"""Which clips make batch number i: so many of them, or as many as hold so many frames."""

from collections.abc import Sequence

import numpy as np


def new_generator(seed: int, *keys: int) -> np.random.Generator:
    """The generator of one sample or step: the same for the same seed and keys, anywhere."""
    return np.random.default_rng([seed, *keys])


def frame_groups(frame_counts: Sequence[int], budget: int, max_frames: int) -> list[np.ndarray]:
    """Clips of like length together, as many as hold `budget` frames when padded to the longest.

    Args:
        frame_counts: length of every clip.
        budget: frames of a group, longest times number; a clip that alone is longer makes a group.
        max_frames: no clip counts for more.

    Raises:
        ValueError: a budget or maximum below 1.
    """
    if budget < 1 or max_frames < 1:
        raise ValueError(f"budget and max_frames must be at least 1, got {budget} and {max_frames}")
    lengths = np.minimum(frame_counts, max_frames)
    order = np.argsort(-lengths, kind="stable")
    groups, first = [], 0
    while first < len(order):
        size = max(1, budget // int(lengths[order[first]]))
        groups.append(order[first : first + size])
        first += size
    return groups


class BatchOrder:
    """(epoch, clip) of every row of batch i, each epoch in an order of its own.

    Args:
        frame_counts: length of every clip in frames.
        batch_size: clips a batch; a batch may end one epoch and begin the next.
        batch_frames: frames a batch instead, as fairseq's ``max_tokens``: see `frame_groups`.
        max_frames: no clip counts for more frames.
        seed: decides the orders.

    Raises:
        ValueError: both or neither of `batch_size` and `batch_frames`, one below 1, no clip.
    """

    def __init__(
        self,
        frame_counts: Sequence[int],
        *,
        batch_size: int | None = None,
        batch_frames: int | None = None,
        max_frames: int = 400,
        seed: int = 0,
    ) -> None:
        if (batch_size is None) == (batch_frames is None) or (batch_size or batch_frames or 0) < 1:
            raise ValueError(
                "give one of batch_size and batch_frames, at least 1, "
                f"got {batch_size} and {batch_frames}"
            )
        if not len(frame_counts):
            raise ValueError("frame_counts must hold at least one clip, got none")
        self.count, self.batch_size, self.seed = len(frame_counts), batch_size, seed
        self._groups = (
            [] if batch_frames is None else frame_groups(frame_counts, batch_frames, max_frames)
        )

    def _permutation(self, epoch: int, count: int) -> np.ndarray:
        return new_generator(self.seed, 1, epoch).permutation(count)

    def __call__(self, number: int) -> list[tuple[int, int]]:
        """The rows of batch `number`."""
        if self.batch_size is None:
            epoch, place = divmod(number, len(self._groups))
            group = self._groups[self._permutation(epoch, len(self._groups))[place]]
            return [(epoch, int(clip)) for clip in group]
        first = number * self.batch_size
        places = [divmod(p, self.count) for p in range(first, first + self.batch_size)]
        orders = {epoch: self._permutation(epoch, self.count) for epoch, _ in places}
        return [(epoch, int(orders[epoch][place])) for epoch, place in places]
