"""A world of codes seen through two random networks, in which every kind of information is known.

Each modality shows a shared code r, a code u of its own and one half s of a synergistic pair. All
codes are uniform and independent; the label of the pair is whether s2 = π(s1).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ritornello.common.errors import UserError

LABELS = ("redundancy", "unique1", "unique2", "synergy")


class CodeSample(NamedTuple):
    """Two modalities (samples, features) and the four labels."""

    inputs: list[Tensor]
    labels: dict[str, Tensor]


@dataclass(frozen=True)
class CodeWorld:
    """x_m = tanh(onehot[r, u_m, s_m] A_m / 1.5) B_m + noise, A and B random and fixed.

    Args:
        seed: of A, B and π.
        values: values of each code.
        features: width of each modality.
        hidden: width of the random network.
        noise: standard deviation.
    """

    seed: int
    values: int = 6
    features: int = 48
    hidden: int = 96
    noise: float = 0.05

    def __post_init__(self) -> None:
        if self.values < 2:
            raise UserError(f"values must be at least 2, got {self.values}")

    @property
    def bijection(self) -> np.ndarray:
        """π: the second code that goes with each first one."""
        return np.random.default_rng([self.seed, 1]).permutation(self.values)

    def _network(self, modality: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([self.seed, 2, modality])
        a = rng.normal(size=(3 * self.values, self.hidden))
        return a, rng.normal(size=(self.hidden, self.features)) / 8

    def sample(self, count: int, stream: tuple[int, ...], *, biased: bool) -> CodeSample:
        """Draws samples; `biased` ones all have s2 = π(s1), as in the paper's training for synergy.

        Args:
            stream: names the random stream.
        """
        rng = np.random.default_rng([self.seed, 3, *stream])
        r, u1, u2, s1, s2 = rng.integers(0, self.values, (5, count))
        if biased:
            s2 = self.bijection[s1]
        inputs = []
        for m, (u, s) in enumerate(((u1, s1), (u2, s2))):
            a, b = self._network(m)
            # a one-hot row times A is the sum of three rows of A
            summed = a[r] + a[self.values + u] + a[2 * self.values + s]
            x = np.tanh(summed / 1.5) @ b + self.noise * rng.normal(size=(count, self.features))
            inputs.append(torch.from_numpy(x).float())
        same = (self.bijection[s1] == s2).astype(np.int64)
        values = dict(zip(LABELS, (r, u1, u2, same), strict=True))
        return CodeSample(inputs, {k: torch.from_numpy(v) for k, v in values.items()})

    def joint(self, label: str) -> np.ndarray:
        """p(code of modality 1, code of modality 2, label), over the codes that the label reads."""
        n = self.values
        first, second = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
        if label == "redundancy":
            table = np.zeros((n, n, n))
            table[np.arange(n), np.arange(n), np.arange(n)] = 1
        elif label == "synergy":
            same = (self.bijection[first] == second).astype(int)
            table = np.stack([1 - same, same], axis=2).astype(float)
        elif label in ("unique1", "unique2"):
            known = first if label == "unique1" else second
            table = (known[:, :, None] == np.arange(n)).astype(float)
        else:
            raise UserError(f"label must be one of {LABELS}, got {label!r}")
        return table / table.sum()
