"""Verdicts follow the interval, and nothing passes without a measurement."""

import math

import pytest
import yaml

from ritornello.common.errors import UserError
from ritornello.common.reporting import Results, judge, load_card
from ritornello.common.reporting.page import markdown_table

BASE = {
    "slug": "toy",
    "title": "Toy",
    "authors": ["A. Person"],
    "venue": "ICLR 2025",
    "arxiv": None,
    "code": {},
    "summary": "A toy.",
}


def card(tmp_path, check, **claim):
    content = BASE | {
        "claims": [
            {"id": "c", "statement": "s", "paper": {"value": "1", "where": "Table 1"}}
            | claim
            | {"check": {"part": "p", "metric": "loss", "arm": "ours"} | check}
        ]
    }
    file = tmp_path / "card.yaml"
    file.write_text(yaml.safe_dump(content))
    return load_card(file)


def results(tmp_path, values, samples=None, aggregate="mean", coordinate="x"):
    """values: {arm: {(seed, x): value}}"""
    records = [
        {
            "cell": {"part": "p", "arm": arm, "seed": seed, "coordinates": {coordinate: x}},
            "measurements": [
                {
                    "metric": "loss",
                    "value": value,
                    "unit": "nat",
                    "aggregate": aggregate,
                    "samples": samples and samples[arm],
                    "coordinates": {},
                }
            ],
        }
        for arm, cells in values.items()
        for (seed, x), value in cells.items()
    ]
    return Results.from_records(records, tmp_path)


def verdict(tmp_path, check, values, profile="small", **options):
    claim = {"profiles": ["small"]}
    return judge(card(tmp_path, check, **claim), results(tmp_path, values, **options), profile)[0]


def seeds(*values):
    return {(i, 0): v for i, v in enumerate(values)}


BELOW = {"kind": "below", "reference": "base"}


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ((0.5, 0.52, 0.48), "reproduced"),
        ((1.5, 1.52, 1.48), "contradicted"),
        ((0.5, 1.5, 1.0), "inconclusive"),
    ],
)
def test_ratio_below_one(tmp_path, ours, expected):
    values = {"ours": seeds(*ours), "base": seeds(1.0, 1.01, 0.99)}
    found = verdict(tmp_path, BELOW, values)
    assert found.verdict == expected
    assert found.n == 3
    assert found.units == "seeds"


def test_margin_is_part_of_the_claim(tmp_path):
    values = {"ours": seeds(0.8, 0.81, 0.79), "base": seeds(1.0, 1.0, 1.0)}
    assert verdict(tmp_path, BELOW, values).verdict == "reproduced"
    assert verdict(tmp_path, BELOW | {"margin": 0.6}, values).verdict == "contradicted"
    assert verdict(tmp_path, BELOW | {"kind": "above"}, values).verdict == "contradicted"


def test_nothing_passes_without_a_measurement(tmp_path):
    ours = {"ours": seeds(0.5, 0.5, 0.5)}
    assert verdict(tmp_path, BELOW, ours).verdict == "not run"
    assert verdict(tmp_path, BELOW, {}).verdict == "not run"
    both = ours | {"base": seeds(1.0, 1.0, 1.0)}
    assert verdict(tmp_path, BELOW, both, profile="smoke").verdict == "not run"
    single = {"ours": seeds(0.5), "base": seeds(1.0)}
    assert verdict(tmp_path, BELOW, single).verdict == "inconclusive"
    wrong = BELOW | {"metric": "accuracy"}
    assert verdict(tmp_path, wrong, both).verdict == "not run"


def test_places_of_one_seed_are_not_independent(tmp_path):
    """Two seeds with ten places each give n = 2."""
    ours = {(s, x): 0.5 + 0.01 * x + 0.1 * s for s in range(2) for x in range(10)}
    base = {(s, x): 1.0 for s in range(2) for x in range(10)}
    assert verdict(tmp_path, BELOW, {"ours": ours, "base": base}).n == 2


def test_a_single_run_is_judged_over_its_samples(tmp_path):
    samples = {"ours": [1.0, 1.2, 0.9, 1.1] * 10, "base": [1.5, 1.7, 1.4, 1.6] * 10}
    values = {"ours": seeds(math.exp(1.05)), "base": seeds(math.exp(1.55))}
    found = verdict(tmp_path, BELOW, values, samples=samples, aggregate="exp_mean")
    assert found.verdict == "reproduced"
    assert found.estimate == pytest.approx(math.exp(-0.5))
    assert (found.n, found.units) == (40, "samples")
    # Constant paired differences leave no doubt at all.
    assert found.high - found.low < 1e-9


@pytest.mark.parametrize("check", [BELOW, {"kind": "below", "reference": 2.0}])
@pytest.mark.parametrize("samples", [[], [1.0]])
def test_a_single_unit_has_no_interval(tmp_path, check, samples):
    values = {"ours": seeds(1.0), "base": seeds(1.0)}
    found = verdict(tmp_path, check, values, samples={"ours": samples, "base": samples})
    assert (found.verdict, found.note) == ("inconclusive", "a single unit has no interval")


def test_number_as_reference_and_within_and_equal(tmp_path):
    values = {"ours": seeds(0.50, 0.51, 0.49)}
    number = {"kind": "above", "reference": 0.4, "compare": "difference"}
    assert verdict(tmp_path, number, values).verdict == "reproduced"
    within = {"kind": "within", "low": 0.45, "high": 0.55}
    assert verdict(tmp_path, within, values).verdict == "reproduced"
    assert verdict(tmp_path, within | {"low": 0.6, "high": 0.7}, values).verdict == "contradicted"
    values["base"] = seeds(0.51, 0.50, 0.50)
    equal = {"kind": "equal", "reference": "base", "margin": 0.2}
    assert verdict(tmp_path, equal, values).verdict == "reproduced"
    assert verdict(tmp_path, equal | {"margin": 0.001}, values).verdict == "inconclusive"


def test_trend_along_a_coordinate(tmp_path):
    values = {"ours": {(s, x): 1.0 / x + 0.01 * s * x for s in range(3) for x in (1, 2, 4, 8)}}
    down = {"kind": "trend", "along": "x", "log": True, "direction": "down"}
    assert verdict(tmp_path, down, values).verdict == "reproduced"
    assert verdict(tmp_path, down | {"direction": "up"}, values).verdict == "contradicted"
    assert verdict(tmp_path, down | {"along": "y"}, values).verdict == "inconclusive"


def test_exact_counts_need_no_interval(tmp_path):
    values = {"ours": seeds(0.015), "base": seeds(1.0)}
    found = verdict(tmp_path, BELOW | {"margin": 0.02, "units": "exact"}, values)
    assert found.verdict == "reproduced"
    assert found.units == "exact"


def test_where_restricts_and_zero_ratios_are_not_judged(tmp_path):
    values = {
        "ours": {(0, 1): 0.1, (1, 1): 0.1, (0, 2): 9.0, (1, 2): 9.0},
        "base": {(0, 1): 1.0, (1, 1): 1.0, (0, 2): 1.0, (1, 2): 1.0},
    }
    assert verdict(tmp_path, BELOW | {"where": {"x": [1]}}, values).verdict == "reproduced"
    assert verdict(tmp_path, BELOW | {"where": {"x": 2}}, values).verdict == "contradicted"
    zero = {"ours": seeds(0.0, 0.0), "base": seeds(1.0, 1.0)}
    found = verdict(tmp_path, BELOW, zero)
    assert found.verdict == "inconclusive"
    assert "positive" in found.note


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "lower"}, "kind"),
        ({"refrence": "x"}, "refrence"),
        ({"reference": None}, "needs reference"),
        ({"units": "cells"}, "units"),
    ],
)
def test_a_card_with_a_mistake_names_it(tmp_path, change, named):
    with pytest.raises(UserError, match=named):
        card(tmp_path, BELOW | change)


def test_tables_escape_what_they_show(tmp_path):
    values = {"ours": seeds(0.5, 0.5), "base": seeds(1.0, 1.0)}
    made = card(tmp_path, BELOW, statement="a | b <script>")
    text = markdown_table(judge(made, results(tmp_path, values), "small"), "small")
    assert "<script>" not in text
    assert "a \\| b" in text
