"""The card of a paper: what it is and what it claims."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib.resources.abc import Traversable
from typing import Any, Literal, get_args

import yaml

from ritornello.common.errors import UserError

Kind = Literal["below", "above", "within", "equal", "trend"]


@dataclass(frozen=True)
class Check:
    """How a claim is judged on the table of measurements.

    Attributes:
        kind: see `judge`.
        part, metric, arm: which measurements.
        reference: another arm, or a number.
        compare: arm / reference or arm − reference.
        margin: fixed before measuring; 1 for ratios and 0 for differences unless given.
        low, high: bounds of `within`.
        along, log, direction: coordinate of a `trend`, whether its log₂ is taken, which way.
        where: coordinates that are kept, each a value or a list of values.
        units: what the interval is over; `exact` for figures that are counted, not estimated.
    """

    kind: Kind
    part: str
    metric: str
    arm: str
    reference: str | float | None = None
    compare: Literal["ratio", "difference"] = "ratio"
    margin: float | None = None
    low: float | None = None
    high: float | None = None
    along: str | None = None
    log: bool = False
    direction: Literal["up", "down"] = "up"
    where: Mapping[str, Any] = field(default_factory=dict)
    units: Literal["seeds", "samples", "exact"] | None = None

    def __post_init__(self) -> None:
        for name in ("kind", "compare", "direction"):
            options = get_args(Check.__annotations__[name])
            if getattr(self, name) not in options:
                raise ValueError(f"{name} must be one of {options}, got {getattr(self, name)!r}")
        if self.units not in (None, "seeds", "samples", "exact"):
            raise ValueError(f"units must be seeds, samples or exact, got {self.units!r}")
        needs = {
            "below": ["reference"],
            "above": ["reference"],
            "equal": ["reference", "margin"],
            "within": ["low", "high"],
            "trend": ["along"],
        }[self.kind]
        for name in needs:
            if getattr(self, name) is None:
                raise ValueError(f"a check of kind {self.kind} needs {name}")


@dataclass(frozen=True)
class Claim:
    """One thing the paper says, with its own figure and where it stands."""

    id: str
    statement: str
    paper: Mapping[str, Any]
    check: Check
    profiles: tuple[str, ...] = ("small", "paper")


@dataclass(frozen=True)
class Card:
    """`experiments/<slug>/card.yaml`."""

    slug: str
    title: str
    authors: tuple[str, ...]
    venue: str
    arxiv: str | None
    code: Mapping[str, Any]
    summary: str
    claims: tuple[Claim, ...]


def load_card(file: Traversable) -> Card:
    """Reads and checks a card.

    Raises:
        UserError: an unknown or missing key, or a check that cannot be judged, with its place.
    """
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    place = f"{content.get('slug', file.name)}/card.yaml"
    claims = []
    for number, claim in enumerate(content.get("claims") or []):
        where = f"{place} claim {claim.get('id', number)}"
        check = _make(Check, claim.get("check") or {}, f"{where}: check")
        claim = claim | {
            "check": check,
            "profiles": tuple(claim.get("profiles", ("small", "paper"))),
        }
        claims.append(_make(Claim, claim, where))
    identifiers = [claim.id for claim in claims]
    if len(set(identifiers)) < len(identifiers):
        raise UserError(f"{place}: claim ids must differ, got {identifiers}")
    content = content | {"claims": tuple(claims), "authors": tuple(content.get("authors") or ())}
    return _make(Card, content, place)


def _make(kind: type, content: Mapping[str, Any], where: str) -> Any:
    known = {f.name: f for f in fields(kind)}
    unknown = set(content) - set(known)
    required = {
        n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING
    }
    if unknown:
        raise UserError(f"{where}: unknown {sorted(unknown)}; accepted: {', '.join(known)}")
    if missing := required - set(content):
        raise UserError(f"{where}: {sorted(missing)} missing")
    try:
        return kind(**content)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {error}") from error
