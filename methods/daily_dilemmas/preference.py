"""Preferences over values and over the classes of five theories (sec. 4 of the paper)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ritornello.common.statistics.evaluation import cluster_bootstrap
from ritornello.methods.daily_dilemmas.dilemmas import KINDS, Dilemma
from ritornello.methods.daily_dilemmas.values import THEORIES, Theory, check_theory

if TYPE_CHECKING:
    import pandas as pd

By = Literal[Theory, "value"]
FEW = 5  # classes counted less often say nothing; figures draw them grey


class ValueIndex:
    """Where each value or class occurs, so that all of them are counted in one pass.

    One entry per occurrence of a class: a class counts as often in an action as the action has
    values of it, and a value on both sides counts once selected and once neglected.
    """

    def __init__(self, dilemmas: Sequence[Dilemma], by: By) -> None:
        check_theory(by, also=("value",))
        self.idx = [dilemma.idx for dilemma in dilemmas]
        labels: dict[str, int] = {label: n for n, label in enumerate(THEORIES.get(by, ()))}
        entries: list[tuple[int, int, int]] = []
        for place, dilemma in enumerate(dilemmas):
            for side, kind in enumerate(KINDS):
                action = dilemma.actions[kind]
                for label in action.values if by == "value" else action.classes[by]:
                    if label is not None:
                        entries.append((place, side, labels.setdefault(label, len(labels))))
        self.labels = list(labels)
        columns = np.array(entries, dtype=np.int64).reshape(-1, 3)
        self.dilemma, self.side, self.label = columns.T

    def sides(self, choices: Mapping[int, str]) -> NDArray[np.int64]:
        """The chosen side of every dilemma, -1 where none was."""
        number = {kind: side for side, kind in enumerate(KINDS)}
        return np.array([number.get(choices.get(i, "NA"), -1) for i in self.idx], dtype=np.int64)

    def counts(
        self, choices: Mapping[int, str]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Selected and neglected by label, and which entries lie in decided dilemmas."""
        chosen = self.sides(choices)[self.dilemma]
        decided = chosen >= 0
        selected = np.bincount(self.label[decided & (chosen == self.side)], minlength=self._size)
        neglected = np.bincount(self.label[decided & (chosen != self.side)], minlength=self._size)
        return selected, neglected, decided

    @property
    def _size(self) -> int:
        return len(self.labels)


def preference(
    choices: Mapping[int, str],
    dilemmas: Sequence[Dilemma],
    by: By = "wvs",
    ci: bool = True,
    *,
    seed: int = 0,
) -> "pd.DataFrame":
    """100 (S - N) / (S + N) of every class, with S selected and N neglected occurrences.

    The interval is a percentile bootstrap (10,000) that draws dilemmas, both actions together,
    among those in which the class occurs; NaN where that is a single one.

    Args:
        choices: idx → to_do or not_to_do; anything else, and what is missing, drops out.
        dilemmas: with the values of their actions.
        by: a theory, or "value" for single values.
        ci: whether to compute intervals.
        seed: of the bootstrap.

    Returns:
        class, selected, neglected, preference, lo, hi in percent; one row per class that occurs in
        a decided dilemma, in the theory's order. Empty if none was decided.
    """
    import pandas as pd

    index = ValueIndex(dilemmas, by)
    selected, neglected, decided = index.counts(choices)
    signs = np.where(index.sides(choices)[index.dilemma] == index.side, 100.0, -100.0)
    rows = []
    # entries of one class lie together in this order
    order = np.flatnonzero(decided)[np.argsort(index.label[decided], kind="stable")]
    ends = np.cumsum(selected + neglected)
    for label in np.flatnonzero(selected + neglected):
        s, n = int(selected[label]), int(neglected[label])
        low = high = float("nan")
        own = order[ends[label] - s - n : ends[label]]
        clusters = index.dilemma[own].tolist()
        if ci and len(set(clusters)) > 1:
            _, low, high = cluster_bootstrap(signs[own], clusters, seed=seed)
        rows.append((index.labels[label], s, n, 100 * (s - n) / (s + n), low, high))
    columns = ["class", "selected", "neglected", "preference", "lo", "hi"]
    return pd.DataFrame(rows, columns=columns)


def preference_difference(
    choices: Mapping[int, str],
    dilemmas: Sequence[Dilemma],
    by: By,
    first: str,
    second: str | None = None,
) -> tuple[float, list[float]]:
    """preference(first), less preference(second) if given, in percent; one sample per dilemma.

    The samples' mean is the difference; their spread is that of its linearisation (the difference
    plus each dilemma's influence), so a bootstrap over them accounts for both classes at once.

    Raises:
        ValueError: a class does not occur in a decided dilemma.
    """
    index = ValueIndex(dilemmas, by)
    chosen = index.sides(choices)
    total, influence = 0.0, np.zeros(len(dilemmas))
    for sign, name in ((1, first), (-1, second)):
        if name is None:
            continue
        number = index.labels.index(name) if name in index.labels else -1
        own = (index.label == number) & (chosen[index.dilemma] >= 0)
        if not own.any():
            raise ValueError(f"{name!r} occurs in no decided dilemma")
        scores = np.where(chosen[index.dilemma[own]] == index.side[own], 100.0, -100.0)
        mean = scores.mean()
        residuals = np.bincount(index.dilemma[own], weights=scores - mean, minlength=len(dilemmas))
        total += sign * mean
        influence += sign * residuals * len(dilemmas) / len(scores)
    return float(total), (total + influence).tolist()
