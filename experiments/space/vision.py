"""A small network that learns to answer picture questions: it shows that the answer is in them."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ritornello.methods.space.item import Item
from ritornello.methods.space.perception import line_orientation, water_level
from ritornello.methods.space.rotation import mental_rotation

PICTURE_FAMILIES: dict[str, Callable[..., Item]] = {
    "wlt": water_level,
    "jlo": line_orientation,
    "mrt": mental_rotation,
}


class PairScorer(nn.Module):
    """How well an option fits a stimulus: a convolutional network over both, stacked."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        channels = [6, width, 2 * width, 4 * width]
        layers: list[nn.Module] = []
        for before, after in pairwise(channels):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
        side = size
        for _ in channels[1:]:
            side = (side + 1) // 2
        layers += [nn.Flatten(), nn.Linear(channels[-1] * side * side, 8 * width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(8 * width, 1))

    def forward(
        self, pairs: Float[Tensor, "questions options 6 size size"]
    ) -> Float[Tensor, "questions options"]:
        return self.layers(pairs.flatten(0, 1)).view(pairs.shape[:2])


@dataclass
class SmallNetwork:
    """Training of a `PairScorer`.

    Args:
        size: side of the pictures in pixels.
        width: channels of the first layer; further layers double it.
        questions, test_questions: generated for training and for testing.
        epochs, batch_size, learning_rate: of Adam.
    """

    size: int = 40
    width: int = 12
    questions: int = 600
    test_questions: int = 150
    epochs: int = 8
    batch_size: int = 40
    learning_rate: float = 2e-3

    def accuracy(self, family: str, difficulty: str, seed: int) -> list[float]:
        """By test question, whether the trained network answered rightly."""
        train = self._pairs(family, difficulty, self.questions, [seed, 0])
        test = self._pairs(family, difficulty, self.test_questions, [seed, 1])
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        model = PairScorer(self.size, self.width)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        right = torch.zeros(self.batch_size, dtype=torch.long)  # the right option is the first
        for _ in range(self.epochs):
            order = torch.randperm(len(train), generator=generator)
            for rows in order.split(self.batch_size):
                optimizer.zero_grad()
                scores = model(train[rows].float() / 255 - 0.5)
                nn.functional.cross_entropy(scores, right[: len(rows)]).backward()
                optimizer.step()
        with torch.no_grad():
            scores = torch.cat([model(part.float() / 255 - 0.5) for part in test.split(100)])
        # on a tie nothing is known
        return (scores[:, :1] > scores[:, 1:]).all(dim=1).float().tolist()

    def _pairs(self, family: str, difficulty: str, number: int, seed: list[int]) -> Tensor:
        """(questions, 4, 6, size, size) uint8: the stimulus and one option, stacked."""
        rng = np.random.default_rng(seed)
        generate = PICTURE_FAMILIES[family]
        pairs = torch.empty(number, 4, 6, self.size, self.size, dtype=torch.uint8)
        for row in range(number):
            item = generate(rng, difficulty, "image", size=self.size)
            shown = torch.from_numpy(item.stimulus[0]).permute(2, 0, 1)
            for place, option in enumerate(item.options):
                pairs[row, place, :3] = shown
                pairs[row, place, 3:] = torch.from_numpy(option).permute(2, 0, 1)
        return pairs
