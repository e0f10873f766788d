"""What accuracy alone hides: slots, circular scores, content behind a slot preference (sec. 9)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ritornello.common.chat import ContinuationScores
from ritornello.common.evaluation import Record
from ritornello.common.evaluation.permutation import read_score, shown_order


@dataclass(frozen=True)
class RotationReport:
    """One family of questions, each asked in all rotations of its options.

    Attributes:
        mean: by stimulus, the share of rotations answered rightly; of a model that always takes
            one slot it is 1/4 by construction.
        circular: by stimulus, 1 where every rotation was answered rightly.
        calibrated: by stimulus, the share answered rightly after every slot's mean log-probability
            over the stimulus' rotations was subtracted; NaN without log-probabilities.
    """

    mean: tuple[float, ...]
    circular: tuple[float, ...]
    calibrated: tuple[float, ...]


def rotation_report(records: Sequence[Record], reading: str = "ours") -> RotationReport:
    """Scores by stimulus of the records of a permuted task."""
    groups: dict[str | None, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.group].append(record)
    values = [
        [read_score(record, reading).value for record in members] for members in groups.values()
    ]
    return RotationReport(
        tuple(float(np.mean(v)) for v in values),
        tuple(float(min(v) >= 1) for v in values),
        tuple(calibrated_score(members) for members in groups.values()),
    )


def calibrated_score(members: Sequence[Record]) -> float:
    """Share of a stimulus' rotations answered rightly once slot preferences are taken out.

    Over a full set of rotations every option stands once in every slot, so a slot's mean holds no
    content, and what is left after subtracting it holds no preference for a slot.
    """
    responses = [record.response for record in members]
    if not all(isinstance(response, ContinuationScores) for response in responses):
        return float("nan")
    log_probs = np.array([response.total for response in responses])
    chosen = (log_probs - log_probs.mean(axis=0)).argmax(axis=1)
    gold = [_gold_slot(record) for record in members]
    return float(np.mean(chosen == gold))


def _gold_slot(record: Record) -> int:
    """Where the right option stood; the label names its place before the permutation."""
    return shown_order(record).index(int(record.labels["gold"]))
