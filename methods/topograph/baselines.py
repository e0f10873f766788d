"""What the paper compares with: losses on persistence diagrams, of one interface.

A class's probability p has the filtration f = 1 − p: sublevel sets of f grow from what is certain.
The foreground is 8-connected. A label is the same with f in {0, 1}.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ritornello.common.optional import require
from ritornello.methods.topograph.inputs import scores_and_classes
from ritornello.methods.topograph.overlap import SoftDiceCLDiceLoss
from ritornello.methods.topograph.persistence import merges

__all__ = ["BettiMatchingLoss", "HuTopoLoss", "SoftDiceCLDiceLoss"]


class _DiagramLoss(nn.Module):
    """Sums a loss of one image of one class, divides by batch size and number of classes.

    Args:
        softmax: whether the input is logits; else it is class probabilities.
        include_background: whether class 0 counts too.
    """

    def __init__(self, softmax: bool = True, include_background: bool = False):
        super().__init__()
        self.softmax, self.include_background = softmax, include_background

    def forward(
        self, logits: Float[Tensor, "batch classes height width"], target: Tensor
    ) -> Float[Tensor, ""]:
        """The loss; `target` holds class indices (batch, height, width) or is one-hot.

        Raises:
            ValueError: as `TopographLoss`.
        """
        scores, classes = scores_and_classes(logits, target, softmax=self.softmax)
        kinds = range(0 if self.include_background else 1, logits.shape[1])
        terms = [
            self.image_loss(1 - scores[n, k].float(), (classes[n] != k).cpu().numpy())
            for k in kinds
            for n in range(len(logits))
        ]
        return (torch.stack(terms).sum() / len(terms)).to(logits.dtype)

    def image_loss(
        self, filtration: Float[Tensor, "height width"], label: np.ndarray
    ) -> Float[Tensor, ""]:
        """The loss of one image; `label` is its filtration as bool: False in the foreground."""
        raise TypeError(f"{type(self).__name__} does not define image_loss()")


class HuTopoLoss(_DiagramLoss):
    """Squared 2-Wasserstein distance of persistence diagrams (Hu et al. 2019), through gudhi.

    All features of a label lie at (0, 1), so the best matching of a dimension takes the label's
    number of features of the prediction that gain most by it; what is left goes to the diagonal.

    Raises:
        UserError: when called without the package gudhi (extra `vision`).
    """

    def image_loss(
        self, filtration: Float[Tensor, "height width"], label: np.ndarray
    ) -> Float[Tensor, ""]:
        """Squared distance of the diagrams of prediction and label."""
        pixels = filtration.flatten()
        loss = pixels.new_zeros(())
        pairs, essential = _cubical_pairs(filtration.detach().cpu().numpy())
        wanted, _ = _cubical_pairs(label.astype(np.float32))
        if (~label).any():  # the component that never ends is born at 0 in the label
            loss = loss + pixels[essential].square().sum()
        for own, others in zip(pairs, wanted, strict=True):
            birth, death = pixels[own[:, 0]], pixels[own[:, 1]]
            to_label = birth.square() + (1 - death).square()
            to_diagonal = (death - birth).square() / 2
            count = min(len(others), len(own))
            gain = (to_diagonal - to_label).detach()
            matched = torch.zeros_like(gain, dtype=torch.bool)
            # Leaving a label's feature alone costs 1/2: matching pays when the gain is above −1/2.
            matched[gain.topk(count).indices] = True
            matched &= gain > -0.5
            loss = loss + torch.where(matched, to_label, to_diagonal).sum()
            loss = loss + 0.5 * (len(others) - matched.sum())
        return loss


def _cubical_pairs(filtration: np.ndarray) -> tuple[list[Tensor], Tensor]:
    """Birth and death pixels of the features of dimensions 0 and 1, and the essential component."""
    gudhi = require("gudhi", extra="vision")
    complex_ = gudhi.CubicalComplex(top_dimensional_cells=filtration)
    complex_.compute_persistence()
    finite, essential = complex_.cofaces_of_persistence_pairs()
    height, width = filtration.shape

    def pixels(cells: np.ndarray) -> Tensor:
        """gudhi counts the first axis fastest."""
        return torch.from_numpy(cells % height * width + cells // height).long()

    none = np.zeros((0, 2), dtype=np.int64)
    pairs = [pixels(x) for x in (*finite, none, none)[:2]]
    return pairs, pixels(essential[0])


class BettiMatchingLoss(_DiagramLoss):
    """Distances of features that match by place (Stucki et al. 2023), in 2D by union-find.

    Features of prediction and label match when the union of their sublevel sets has one feature
    that both map to; unmatched ones go to the diagonal.
    """

    def image_loss(
        self, filtration: Float[Tensor, "height width"], label: np.ndarray
    ) -> Float[Tensor, ""]:
        """Squared distances of matched features, and of the others to the diagonal."""
        pixels = filtration.flatten()
        field = filtration.detach().cpu().numpy().astype(np.float32)
        goal = label.astype(np.float32)
        loss = pixels.new_zeros(())
        if (~label).any():  # components that never end
            loss = loss + pixels[int(field.argmin())].square()
        for match in (match_components, match_loops):
            own, others, partner = match(field, goal)
            birth, death = (pixels[torch.from_numpy(x)] for x in own)
            has = torch.from_numpy(partner >= 0)
            # Every feature of a label lies at (0, 1).
            to_label = birth.square() + (1 - death).square()
            to_diagonal = (death - birth).square() / 2
            loss = loss + torch.where(has.to(birth.device), to_label, to_diagonal).sum()
            loss = loss + 0.5 * (others.shape[1] - int(has.sum()))
        return loss


Matching = tuple[np.ndarray, np.ndarray, np.ndarray]


def match_components(first: np.ndarray, second: np.ndarray) -> Matching:
    """Matches the finite components of two filtrations of sublevel sets.

    Returns:
        For each filtration the pixels of births and deaths, (2, features), of features that last;
        and for each feature of the first the number of its partner in the second, or −1.
    """
    both = np.minimum(first, second)
    bars = [_bars(field, *merges(field, [field], 8)) for field in (first, second)]
    at, dying = merges(both, [first, second], 8)
    end = both.ravel()[at]
    alive = (first.ravel()[dying[0]] < end) & (second.ravel()[dying[1]] < end)
    return bars[0], bars[1], _partners(bars, 0, dying[0][alive], dying[1][alive])


def match_loops(first: np.ndarray, second: np.ndarray) -> Matching:
    """Matches the loops of two filtrations; as `match_components`.

    Loops are the components of the complement (Alexander duality), whose superlevel sets shrink: in
    the negated field a loop is born where two of them merge, and dies at the least pixel.
    """
    width = first.shape[1]
    fields = [-np.pad(f, 1, constant_values=np.inf) for f in (first, second)]
    both = np.maximum(*fields)
    bars, keys = [], []
    for field in fields:
        at, (own, common) = merges(field, [field, both], 4)
        lasting = field.ravel()[own] < field.ravel()[at]
        known = both.ravel()[common] < field.ravel()[at]
        keys.append(np.where(known, common, -1)[lasting])
        padded = np.stack([at, own])[:, lasting].astype(np.int64)
        bars.append((padded // (width + 2) - 1) * width + padded % (width + 2) - 1)
    shared = set(keys[1][keys[1] >= 0].tolist()) & set(keys[0].tolist())
    place = {key: n for n, key in enumerate(keys[1].tolist()) if key in shared}
    return bars[0], bars[1], np.array([place.get(key, -1) for key in keys[0].tolist()], dtype=int)


def _bars(field: np.ndarray, at: np.ndarray, dying: np.ndarray) -> np.ndarray:
    lasting = field.ravel()[dying[0]] < field.ravel()[at]
    return np.stack([dying[0], at])[:, lasting].astype(np.int64)


def _partners(
    bars: list[np.ndarray], row: int, keys: np.ndarray, partners: np.ndarray
) -> np.ndarray:
    """Each feature of the first filtration finds the second's by the pixels of their births."""
    numbers = {pixel: n for n, pixel in enumerate(bars[1][row].tolist())}
    found = dict(zip(keys.tolist(), partners.tolist(), strict=True))
    return np.array([numbers.get(found.get(p, -1), -1) for p in bars[0][row].tolist()], dtype=int)
