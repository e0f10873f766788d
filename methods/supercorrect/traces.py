"""The hierarchical thought as data: parse, check and write its XML (paper sec. 3.1, Fig. 2).

Models write the tags loosely (`<Step 1>`, `<step_1:>`, a tag that never closes, a bare `<` in an
inequality), so the parser is no XML parser: it recognises the template's own tags and leaves the
rest alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_TAG = re.compile(
    r"<\s*(?P<close>/?)\s*"
    r"(?:(?P<step>step)[\s_\-:]*(?P<number>\d*)|(?P<name>key|cause|correction|generali[sz]ed|answer))"
    r"[\s:]*>",
    re.IGNORECASE,
)
_ANNOTATIONS = ("key", "cause", "correction")


@dataclass(frozen=True)
class Step:
    """One reasoning step.

    Args:
        text: the reasoning itself, without the annotations.
        key: explanation of a hard step.
        cause: in a correction trace, why the step is wrong.
        correction: in a correction trace, how it should be.
    """

    text: str
    key: str | None = None
    cause: str | None = None
    correction: str | None = None


@dataclass(frozen=True)
class Trace:
    """A hierarchical solution, or the correction of one."""

    steps: tuple[Step, ...]
    generalized: str | None = None
    answer: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))

    @property
    def first_error(self) -> int | None:
        """1-based place of the first step that carries a Cause."""
        places = (place for place, step in enumerate(self.steps, 1) if step.cause is not None)
        return next(places, None)


@dataclass
class _Draft:
    """Text gathered for one element while it is open."""

    kind: str
    parts: list[str] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def note(self, name: str) -> str | None:
        return "\n".join(text.strip() for text in self.notes[name]) if name in self.notes else None


def parse_trace(text: str) -> Trace:
    """Reads a trace from a model's answer.

    Text outside the tags is ignored; an element ends at its closing tag, where a sibling begins, or
    at the end of the text; of several answers the last one counts; an annotation after a closed
    step belongs to that step.
    """
    elements: list[_Draft] = []
    element: _Draft | None = None  # the open step, generalisation or answer
    note: str | None = None  # the open annotation of the newest step
    cursor = 0
    for tag in _TAG.finditer(text):
        _gather(text[cursor : tag.start()], element, note, elements)
        cursor = tag.end()
        name = "step" if tag["step"] else tag["name"].lower().replace("ised", "ized")
        if tag["close"]:
            note = None
            element = element if name in _ANNOTATIONS else None
        elif name in _ANNOTATIONS:
            owner = _newest_step(elements)
            note = name if owner is not None else None
            if owner is not None:
                owner.notes.setdefault(name, []).append("")
        else:
            element, note = _Draft(name), None
            elements.append(element)
    _gather(text[cursor:], element, note, elements)
    steps = tuple(
        Step("".join(draft.parts).strip(), *(draft.note(name) for name in _ANNOTATIONS))
        for draft in elements
        if draft.kind == "step"
    )
    last = {draft.kind: "".join(draft.parts).strip() for draft in elements if draft.kind != "step"}
    return Trace(steps, last.get("generalized") or None, last.get("answer") or None)


def _newest_step(elements: list[_Draft]) -> _Draft | None:
    return next((draft for draft in reversed(elements) if draft.kind == "step"), None)


def _gather(piece: str, element: _Draft | None, note: str | None, elements: list[_Draft]) -> None:
    if note is not None:
        owner = _newest_step(elements)
        assert owner is not None  # a note is open only inside a step
        owner.notes[note][-1] += piece
    elif element is not None:
        element.parts.append(piece)


def render_step(place: int, step: Step, *, close: bool = True) -> str:
    """`<Step1>text<Key>..</Key><Cause>..</Cause><Correction>..</Correction></Step1>`."""
    notes = "".join(
        f"<{name.title()}>{value}</{name.title()}>"
        for name in _ANNOTATIONS
        if (value := getattr(step, name)) is not None
    )
    return f"<Step{place}>{step.text}{notes}" + (f"</Step{place}>" if close else "")


def render_trace(trace: Trace) -> str:
    """The canonical text of a trace; `parse_trace` gives the trace back."""
    lines = [render_step(place, step) for place, step in enumerate(trace.steps, 1)]
    if trace.generalized is not None:
        lines.append(f"<Generalized>{trace.generalized}</Generalized>")
    if trace.answer is not None:
        lines.append(f"<Answer>{trace.answer}</Answer>")
    return "\n".join(lines)


def trace_faults(trace: Trace, *, generalized: bool = True) -> list[str]:
    """What keeps a trace from being training data; empty when nothing does.

    Args:
        trace: as parsed.
        generalized: whether the template asks for a generalisation.
    """
    faults = []
    if not trace.steps:
        faults.append("no step")
    faults += [f"step {place} is empty" for place, s in enumerate(trace.steps, 1) if not s.text]
    faults += [
        f"step {place} has a cause without a correction"
        for place, step in enumerate(trace.steps, 1)
        if step.cause is not None and not step.correction
    ]
    if generalized and trace.generalized is None:
        faults.append("no generalisation")
    if trace.answer is None:
        faults.append("no answer")
    return faults


def solution_steps(text: str) -> tuple[str, ...]:
    """The step texts of a solution; one without tags gives its non-empty lines."""
    trace = parse_trace(text)
    if trace.steps:
        return tuple(step.text for step in trace.steps)
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def steps_trace(steps: Sequence[str]) -> Trace:
    """Plain step texts as a trace."""
    return Trace(tuple(map(Step, steps)))
