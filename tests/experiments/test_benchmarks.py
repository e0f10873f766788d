"""`make bench`: suites are kept one by one, a broken one costs the others nothing."""

import json
import sys
from types import SimpleNamespace

import pytest

from ritornello.experiments.benchmarks import Benchmark, harness
from ritornello.experiments.benchmarks import __main__ as bench


def _suite(*benchmarks):
    return SimpleNamespace(benchmarks=lambda: iter(benchmarks))


def _differ(a, b):
    assert a == b, "the two sides differ"


@pytest.fixture
def run(monkeypatch, tmp_path):
    sums = Benchmark(
        "sum", ours=lambda: sum(range(9)), peer=lambda: 36, peer_name="constant", seconds=0,
        agree=_differ, target=1e9,
    )  # fmt: skip
    wrong = Benchmark("wrong", ours=lambda: 1, peer=lambda: 2, peer_name="two", agree=_differ)
    toys = {"good": _suite(sums), "bad": _suite(wrong), "last": _suite(sums)}
    monkeypatch.setattr(bench, "suites", lambda: list(toys))
    for name, module in toys.items():
        monkeypatch.setitem(sys.modules, f"ritornello.experiments.benchmarks.{name}", module)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["bench", "--outputs", str(tmp_path), *arguments])
        return bench.main()

    return call


def test_a_suite_whose_sides_disagree_fails_alone(run, tmp_path, capsys):
    assert run() == 1
    assert "the two sides differ" in capsys.readouterr().out
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert set(kept) == {"good", "last"}
    assert kept["good"]["timings"][0]["repeats"] == 5


def test_one_suite_keeps_the_others_timings(run, tmp_path):
    assert run("good") == 0
    assert run("last") == 0
    assert set(json.loads((tmp_path / "bench.json").read_text())) == {"good", "last"}


def test_an_unknown_suite_names_the_known_ones(run, capsys):
    assert run("godo") == 2
    assert "good" in capsys.readouterr().err


def test_record_writes_the_table_beside_the_docs(run, tmp_path, monkeypatch):
    folder = tmp_path / "repository" / "experiments" / "benchmarks"
    monkeypatch.setattr(bench.resources, "files", lambda name: folder)
    assert run("--record") == 2  # nothing timed yet
    assert run("good") == 0
    assert run("--record") == 0
    assert "sum | constant" in (tmp_path / "repository" / "docs" / "benchmarks.md").read_text()
    assert "missed" in (tmp_path / "repository" / "docs" / "benchmarks.md").read_text()
    assert set(json.loads((folder / "results.json").read_text())) == {"good"}


def test_time_of_a_part_of_the_peers_work_stands_for_all_of_it(monkeypatch):
    monkeypatch.setattr(harness, "_seconds", lambda call, inner: call())
    timing = harness.time_pair(
        Benchmark("share", lambda: 1.0, lambda: 2.0, "a tenth", seconds=0, peer_share=0.1)
    )
    assert timing.peer == pytest.approx(20)
    assert timing.ratio == pytest.approx(20)
