"""From measurements to verdicts."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from ritornello.common.reporting.card import Card, Check, Claim
from ritornello.common.reporting.results import Results
from ritornello.common.statistics import (
    Interval,
    bootstrap_interval,
    paired_bootstrap,
    slope_interval,
    t_interval,
)

Outcome = Literal["reproduced", "contradicted", "inconclusive", "not run"]


@dataclass(frozen=True)
class Verdict:
    """A claim, what was measured for it, and what follows.

    Attributes:
        ours: mean of the arm's own values; None when it was not measured.
        reference: the same of the reference.
        estimate, low, high: the judged quantity with its 95 % interval.
        margin: the claimed range in words; claimed_low, claimed_high: its ends, None where open.
        n: how many independent pairs or units the interval rests on.
        units: what those are.
    """

    claim: str
    statement: str
    paper: str
    where: str
    verdict: Outcome
    quantity: str
    unit: str = ""
    ours: float | None = None
    reference: float | None = None
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    margin: str = ""
    claimed_low: float | None = None
    claimed_high: float | None = None
    n: int = 0
    units: str = ""
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Unjudgeable(Exception):
    pass


def judge(card: Card, results: Results, profile: str) -> list[Verdict]:
    """Judges every claim of a card on a run's table.

    The verdict is that of the 95 % interval of the claim's quantity: wholly on the claimed side of
    the margin `reproduced`, wholly on the other side `contradicted`, otherwise `inconclusive`;
    `not run` when a side is missing or the profile does not judge the claim.

    | kind | quantity | reproduced when the interval lies |
    |---|---|---|
    | below, above | arm / reference or arm − reference | below, above the margin |
    | equal | the same | inside [1/(1+margin), 1+margin], or ±margin |
    | within | the arm's own value | inside [low, high] |
    | trend | slope along a coordinate | above (up) or below (down) the margin |
    """
    return [_judge(claim, results, profile) for claim in card.claims]


def _judge(claim: Claim, results: Results, profile: str) -> Verdict:
    check = claim.check
    base = {
        "claim": claim.id,
        "statement": claim.statement,
        "paper": str(claim.paper.get("value", "")),
        "where": str(claim.paper.get("where", "")),
        "quantity": describe(check),
    }
    if profile not in claim.profiles:
        judged = " and ".join(claim.profiles) or "no"
        return Verdict(**base, verdict="not run", note=f"judged in the {judged} profile")
    arm = results.select(check.part, check.metric, check.arm, **check.where)
    if arm.empty:
        return Verdict(**base, verdict="not run", note=f"{check.arm} was not measured")
    base |= {"ours": float(arm["value"].mean()), "unit": str(arm["unit"].iloc[0])}
    reference: pd.DataFrame | float | None = None
    if check.kind in ("below", "above", "equal"):
        if isinstance(check.reference, str):
            reference = results.select(check.part, check.metric, check.reference, **check.where)
            if reference.empty:
                return Verdict(
                    **base, verdict="not run", note=f"{check.reference} was not measured"
                )
            base["reference"] = float(reference["value"].mean())
        else:
            reference = base["reference"] = float(check.reference)
    low, high = bounds(check)
    base["margin"] = _say_bounds(low, high)
    base["claimed_low"] = None if math.isinf(low) else low
    base["claimed_high"] = None if math.isinf(high) else high
    try:
        interval, n, units = _quantity(check, arm, reference, results.coordinates)
    except _Unjudgeable as reason:
        return Verdict(**base, verdict="inconclusive", note=str(reason))
    return Verdict(
        **base,
        estimate=interval.estimate,
        low=interval.low,
        high=interval.high,
        verdict=decide(interval, low, high),
        n=n,
        units=units,
    )


def bounds(check: Check) -> tuple[float, float]:
    """The open interval in which the claimed quantity must lie."""
    ratio = check.compare == "ratio"
    margin = check.margin
    if check.kind == "within":
        return float(check.low), float(check.high)
    if check.kind == "equal":
        assert margin is not None
        return (1 / (1 + margin), 1 + margin) if ratio else (-margin, margin)
    if check.kind == "trend":
        edge = margin or 0.0
        return (edge, math.inf) if check.direction == "up" else (-math.inf, -edge)
    edge = margin if margin is not None else (1.0 if ratio else 0.0)
    return (-math.inf, edge) if check.kind == "below" else (edge, math.inf)


def decide(interval: Interval, low: float, high: float) -> Outcome:
    """Reads the verdict off an interval and the claimed range."""
    if interval.low > low and interval.high < high:
        return "reproduced"
    if interval.high <= low or interval.low >= high:
        return "contradicted"
    return "inconclusive"


def describe(check: Check) -> str:
    """The judged quantity in words."""
    if check.kind == "trend":
        along = f"log₂ {check.along}" if check.log else check.along
        return f"slope of {check.metric} of {check.arm} along {along}"
    if check.kind == "within":
        return f"{check.metric} of {check.arm}"
    sign = "/" if check.compare == "ratio" else "−"
    return f"{check.metric}: {check.arm} {sign} {check.reference}"


def _say_bounds(low: float, high: float) -> str:
    if math.isinf(low):
        return f"< {high:g}"
    return f"> {low:g}" if math.isinf(high) else f"{low:.4g} … {high:.4g}"


def _quantity(
    check: Check, arm: pd.DataFrame, reference: pd.DataFrame | float | None, coordinates: list[str]
) -> tuple[Interval, int, str]:
    if check.kind == "trend":
        return _slope(check, arm)
    keys = ["seed", *(c for c in coordinates if c in arm.columns and arm[c].notna().any())]
    pairs = _pair(arm, reference, keys)
    ratio = check.compare == "ratio" and check.kind != "within"
    if ratio and (pairs[["value", "reference"]] <= 0).any(axis=None):
        raise _Unjudgeable("a ratio needs positive values; some were zero or negative")
    if not np.isfinite(pairs[["value", "reference"]].to_numpy(dtype=float)).all():
        raise _Unjudgeable("a measured value is not finite")
    units = check.units or ("seeds" if len(pairs) > 1 else "samples")
    if units == "exact":
        return _exact(pairs, ratio)
    if units == "samples":
        return _over_samples(pairs, ratio, check)
    return _over_pairs(pairs, ratio)


def _pair(
    arm: pd.DataFrame, reference: pd.DataFrame | float | None, keys: list[str]
) -> pd.DataFrame:
    """Rows of the arm beside the reference's value (and samples) for the same seed and place."""
    left = arm[[*keys, "value", "samples", "aggregate"]]
    if left.duplicated(keys).any():
        raise _Unjudgeable(f"several values for the same {', '.join(keys)}")
    if not isinstance(reference, pd.DataFrame):
        constant = 0.0 if reference is None else reference
        return left.assign(reference=constant, reference_samples=None)
    right = reference[[*keys, "value", "samples"]]
    if right.duplicated(keys).any():
        raise _Unjudgeable(f"several reference values for the same {', '.join(keys)}")
    right = right.rename(columns={"value": "reference", "samples": "reference_samples"})
    pairs = left.merge(right, on=keys)
    if pairs.empty:
        raise _Unjudgeable("no seed and place was measured for both")
    return pairs


def _exact(pairs: pd.DataFrame, ratio: bool) -> tuple[Interval, int, str]:
    a, b = pairs["value"].to_numpy(float), pairs["reference"].to_numpy(float)
    values = a / b if ratio else a - b
    return Interval(float(values.mean()), float(values.min()), float(values.max())), len(a), "exact"


def _over_pairs(pairs: pd.DataFrame, ratio: bool) -> tuple[Interval, int, str]:
    """t interval over seeds; places of one seed are averaged first, since they share its luck."""
    a, b = pairs["value"].to_numpy(float), pairs["reference"].to_numpy(float)
    quantity = pairs.assign(quantity=np.log(a / b) if ratio else a - b)
    seeds = quantity.groupby("seed")["quantity"].mean()
    values, units = (seeds, "seeds") if len(seeds) > 1 else (quantity["quantity"], "places")
    if len(values) < 2:
        raise _Unjudgeable("a single pair has no interval")
    interval = t_interval(values.to_numpy())
    return (Interval(*map(math.exp, interval)) if ratio else interval), len(values), units


def _over_samples(pairs: pd.DataFrame, ratio: bool, check: Check) -> tuple[Interval, int, str]:
    """Paired bootstrap over the units of all pairs together."""
    if pairs["samples"].isna().any():
        raise _Unjudgeable("a single pair without per-unit samples has no interval")
    exponential = pairs["aggregate"].iloc[0] == "exp_mean"

    def aggregate(x: np.ndarray) -> np.ndarray:
        return np.exp(x.mean(-1)) if exponential else x.mean(-1)

    ours = np.concatenate([np.asarray(s, float) for s in pairs["samples"]])
    if len(ours) < 2:
        raise _Unjudgeable("a single unit has no interval")
    if pairs["reference_samples"].isna().any():
        constant = float(pairs["reference"].iloc[0])
        interval = bootstrap_interval(
            ours,
            statistic=lambda x: aggregate(x) / constant if ratio else aggregate(x) - constant,
        )
        return interval, len(ours), "samples"
    theirs = np.concatenate([np.asarray(s, float) for s in pairs["reference_samples"]])
    if len(ours) != len(theirs):
        raise _Unjudgeable("arm and reference have different units")

    def compare(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return aggregate(x) / aggregate(y) if ratio else aggregate(x) - aggregate(y)

    return paired_bootstrap(ours, theirs, compare=compare), len(ours), "samples"


def _slope(check: Check, arm: pd.DataFrame) -> tuple[Interval, int, str]:
    if check.along not in arm.columns:
        raise _Unjudgeable(f"the table has no coordinate {check.along}")
    x = arm[check.along].astype(float)
    arm = arm.assign(_x=np.log2(x) if check.log else x)
    slopes = []
    for _, rows in arm.groupby("seed"):
        if rows["_x"].nunique() >= 2:
            slopes.append(float(np.polyfit(rows["_x"], rows["value"], 1)[0]))
    if len(slopes) >= 2:
        return t_interval(slopes), len(slopes), "seeds"
    if arm["_x"].nunique() < 3:
        raise _Unjudgeable("one seed and fewer than three points have no interval")
    return slope_interval(arm["_x"], arm["value"]), len(arm), "points"
