"""Rows of a report: both readings, clusters, what went wrong, and when there is no score."""

import csv
import json

import pytest
from quiz import Quiz

from ritornello.common.chat import ErrorBudgetExceeded, Flaky, ScriptedClient
from ritornello.common.evaluation import evaluate
from ritornello.common.evaluation.baselines import oracle, rambling, scripted
from ritornello.common.evaluation.report import markdown, measurements, report_rows, write_report


def test_rows_count_and_average():
    quiz = Quiz(number=20)
    records = evaluate(quiz, ScriptedClient(lambda prompt, params: "A"))
    whole, even, odd, macro = report_rows(
        records, by="parity", total=25, chance={"all": 0.25}, published={"all": (0.9, "table 1")}
    )
    assert (whole.node, whole.n, whole.n_total, whole.ours) == ("all", 20, 25, 0.25)
    assert (even.node, even.ours, odd.ours) == ("parity=0", 0.5, 0.0)
    assert (macro.weighting, macro.ours, whole.weighting) == ("macro", 0.25, "micro")
    assert whole.low < 0.25 < whole.high
    assert (odd.low, odd.high) == (0, 0)
    assert "| all (micro) | 20/25 | 0.250 |" in markdown([whole])
    assert "0.900 (table 1)" in markdown([whole])


def test_questions_that_share_a_stimulus_widen_the_interval():
    def width(size):
        quiz = Quiz(number=400, cluster_size=size)
        records = evaluate(quiz, ScriptedClient(reply))
        row = report_rows(records)[0]
        return row.high - row.low

    def reply(prompt, params):
        # right or wrong by runs of eight questions
        number = int(prompt.messages[0].text.split()[1].rstrip(":"))
        return "ABCD"[(number + number // 8) % 4] if number // 8 % 2 else "ABCD"[number % 4]

    assert width(8) > 1.8 * width(1)


def test_both_readings_are_shown_with_the_number_of_differences():
    quiz = Quiz(number=20)
    records = evaluate(quiz, scripted(quiz, oracle, write=rambling(6), name="rambler"))
    (row,) = report_rows(records)
    assert row.ours == 1
    assert row.official == 1 - row.n_differ / 20
    found = {m.metric: m for m in measurements(records, order="both")}
    assert found["accuracy"].value == 1
    assert found["accuracy_official"].value == row.official
    assert found["n_differ"].value == row.n_differ
    assert found["accuracy"].coordinates == {"order": "both"}
    assert len(found["accuracy"].as_record()["samples"]) == 20


def test_too_many_failures_are_no_score():
    quiz = Quiz(number=50)
    records = evaluate(quiz, Flaky(scripted(quiz, oracle, name="oracle"), 0.2))
    with pytest.raises(ErrorBudgetExceeded, match="of 50 questions got no answer"):
        report_rows(records)
    (row,) = report_rows(records, max_error_share=0.5)
    assert row.ours == 1
    assert row.n_counted == 50 - row.n_error < 50


def test_reports_are_written_whole(tmp_path):
    quiz = Quiz(number=8)
    rows = report_rows(evaluate(quiz, scripted(quiz, oracle, name="oracle")), by="parity")
    path = write_report(rows, tmp_path / "out")
    assert path.read_text().count("\n") == 2 + len(rows)
    assert len(json.loads(path.with_suffix(".json").read_text())) == len(rows)
    with path.with_suffix(".csv").open() as table:
        assert next(csv.DictReader(table))["node"] == "all"
    assert sorted(p.suffix for p in path.parent.iterdir()) == [".csv", ".json", ".md"]


def test_bad_labels_and_empty_reports_are_told():
    quiz = Quiz(number=2)
    records = evaluate(quiz, scripted(quiz, oracle, name="oracle"))
    with pytest.raises(ValueError, match="no label 'domain'"):
        report_rows(records, by="domain")
    with pytest.raises(ValueError, match="at least one record"):
        report_rows([])
