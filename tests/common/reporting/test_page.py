"""The page shows hostile text as text, the files are whole, a tracker gets everything."""

import json

import pytest

from ritornello.common.reporting import Figure, Results, new_figure
from ritornello.common.reporting.card import Card
from ritornello.common.reporting.claims import Verdict
from ritornello.common.reporting.page import Report, strip, write_report
from ritornello.common.reporting.terminal import format_seconds, time_left
from ritornello.common.reporting.trackers import WandbTracker, read_curve
from ritornello.common.runs import Cell, RunDirectory

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def report(tmp_path):
    store = RunDirectory(tmp_path)
    store.create()
    cell = Cell("p", "ours", 0, {"x": 1})
    context = store.context(cell)
    context.log(0, loss=2.0)
    context.log(1, loss=1.0)
    context.log(1, loss=1.5)
    measurement = {
        "metric": HOSTILE,
        "value": 1.0,
        "unit": "",
        "samples": None,
        "aggregate": "mean",
        "coordinates": {},
    }
    record = {
        "cell": {"part": "p", "arm": "ours", "seed": 0, "coordinates": {"x": 1}},
        "measurements": [measurement],
        "inputs": {"data": "abc"},
        "used": {"wall_seconds": 4.0, "cpu_seconds": 1.0, "peak_memory_mib": 5.0},
        "revision": {"revision": "r", "dirty": False},
        "environment": {"processor": HOSTILE},
        "source": "s",
    }
    store.record(cell, record)
    figure, axes = new_figure()
    axes.plot([0, 1])
    return Report(
        card=Card("toy", HOSTILE, ("A",), "ICLR 2025", "1", {}, HOSTILE, ()),
        profile="small",
        verdicts=[Verdict("c", HOSTILE, HOSTILE, HOSTILE, "reproduced", HOSTILE, note=HOSTILE)],
        results=Results.from_records([record], tmp_path),
        figures=[Figure("line", HOSTILE, figure)],
        config={"key": HOSTILE},
        records=[record],
        failures={HOSTILE: HOSTILE},
    )


def test_hostile_strings_are_shown_as_text(report, tmp_path):
    page = write_report(report, tmp_path).read_text()
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in page


def test_the_run_directory_holds_table_verdicts_and_pictures(report, tmp_path):
    write_report(report, tmp_path)
    content = json.loads((tmp_path / "verdicts.json").read_text())
    assert content["verdicts"][0]["verdict"] == "reproduced"
    assert content["totals"] == {
        "cells": 1,
        "cpu_seconds": 1.0,
        "wall_seconds": 4.0,
        "peak_memory_mib": 5.0,
    }
    assert (tmp_path / "figures" / "line.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "measurements.csv").read_text().startswith("part,arm,seed")


def test_curves_keep_the_last_line_of_a_step(report, tmp_path):
    curve = read_curve(tmp_path, Cell("p", "ours", 0, {"x": 1}))
    assert curve == [{"step": 0, "loss": 2.0}, {"step": 1, "loss": 1.5}]


def test_wandb_offline_asks_nothing_and_keeps_its_id(report, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    write_report(report, tmp_path)
    WandbTracker().send(report, "toy-small-1", tmp_path)
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    assert run.name.endswith("toy-small-1")
    assert any(run.glob("*.wandb"))


def test_an_unknown_tracker_mode_is_named():
    with pytest.raises(ValueError, match="offline or online"):
        WandbTracker(mode="maybe")


def test_time_left_uses_what_finished_cells_cost(report):
    cells = [Cell("p", "ours", s, {"x": 1}) for s in range(3)]
    assert time_left(cells, report.records, workers=1) == pytest.approx(8.0)
    assert time_left(cells, report.records, workers=2) == pytest.approx(4.0)
    assert time_left(cells, [], workers=1) is None
    assert [format_seconds(s) for s in (42, 185, 7800)] == ["42 s", "3 min 05 s", "2 h 10 min"]


def test_the_picture_of_a_claim_puts_its_parts_on_one_scale():
    verdict = Verdict(
        "c", "s", "p", "w", "inconclusive", "q", estimate=0.5, low=0.0, high=1.0, claimed_low=0.6
    )
    picture = strip(verdict)
    assert picture is not None
    left, width = picture.interval
    assert left < picture.estimate < left + width
    assert picture.estimate == pytest.approx(50)
    # Claimed is all above 0.6, and 0.6 lies six tenths along the interval.
    assert sum(picture.claimed) == 100
    assert picture.claimed[0] == pytest.approx(left + 0.6 * width, abs=0.02)


def test_a_claim_without_an_interval_has_no_picture():
    assert strip(Verdict("c", "s", "p", "w", "not run", "q")) is None
    point = Verdict("c", "s", "p", "w", "reproduced", "q", estimate=1, low=1, high=1, claimed_low=1)
    assert strip(point) is not None
