"""The analyses as slow, obvious loops over rows: the oracle of the tests, and the peer in speed."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ritornello.methods.daily_dilemmas.dilemmas import KINDS, Dilemma


def preference_counts(
    choices: Mapping[int, str], dilemmas: Sequence[Dilemma], by: str
) -> dict[str, tuple[int, int]]:
    """Selected and neglected occurrences of every class, action by action."""
    selected: Counter[str] = Counter()
    neglected: Counter[str] = Counter()
    for dilemma in dilemmas:
        if choices.get(dilemma.idx) not in KINDS:
            continue
        for kind in KINDS:
            side = selected if kind == choices[dilemma.idx] else neglected
            action = dilemma.actions[kind]
            for name in action.values if by == "value" else action.classes[by]:
                if name is not None:
                    side[name] += 1
    return {name: (selected[name], neglected[name]) for name in selected | neglected}


def conflict_dilemmas(
    supporting: Sequence[str], opposing: Sequence[str], dilemmas: Sequence[Dilemma]
) -> list[int]:
    """The published search: candidates by substring of the printed list, then the exact filter."""
    kept = []
    for dilemma in dilemmas:
        text = " ".join(str(list(dilemma.actions[kind].values)) for kind in KINDS)
        if not any(v in text for v in supporting) or not any(v in text for v in opposing):
            continue
        sides = []
        for kind in KINDS:
            side = set()
            for value in dilemma.actions[kind].values:
                if value in supporting:
                    side.add("supporting")
                if value in opposing:
                    side.add("opposing")
            sides.append(side)
        if all(len(side) == 1 for side in sides) and len(sides[0] | sides[1]) == 2:
            kept.append(dilemma.idx)
    return kept
