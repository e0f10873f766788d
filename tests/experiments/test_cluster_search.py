"""A search: its ranges, several processes on one study, a kill in the midst of a trial."""

import json
import multiprocessing
import os
import signal
import time

import pytest

pytest.importorskip("optuna", reason="extra cluster")

from ritornello.common.errors import UserError
from ritornello.experiments.search import Aim, Journal, search, understand

RANGES = ["x=interval(-4, 4)", "n=range(1, 9)", "kind=choice(flat,steep)"]


def hill(chosen) -> float:
    slope = 3.0 if chosen["kind"] == "steep" else 1.0
    return slope * (chosen["x"] - 1) ** 2 + chosen["n"]


def study(folder, **aim) -> Journal:
    folder.mkdir(exist_ok=True)
    return Journal(folder, Aim(metric="loss", **aim))


def ranges():
    return understand(["search.metric=loss", *RANGES])[1]


def test_a_search_comes_near_the_best_value(tmp_path):
    journal = study(tmp_path, trials=40)
    found = list(journal.run(ranges(), hill))
    assert len(found) == 40
    assert all(isinstance(c["n"], int) and 1 <= c["n"] <= 8 for _, c, _ in found)
    assert {c["kind"] for _, c, _ in found} == {"flat", "steep"}
    best = journal.best()
    assert best["value"] == min(value for *_, value in found) < 2
    assert hill(best["overrides"]) == best["value"]


def _work_until_killed(folder, killed_at):
    def deadly(chosen):
        if len(journal.study.trials) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return hill(chosen)

    journal = study(folder, trials=14)
    list(journal.run(ranges(), deadly))


def test_a_killed_search_goes_on_as_if_nothing_had_been(tmp_path):
    straight = list(study(tmp_path / "straight", trials=14).run(ranges(), hill))
    for killed_at in (3, 12):
        process = multiprocessing.get_context("fork").Process(
            target=_work_until_killed, args=(tmp_path / "broken", killed_at)
        )
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    journal = study(tmp_path / "broken", trials=14)
    list(journal.run(ranges(), hill))
    trials = [(t.number, t.params, t.value) for t in journal.study.trials]
    assert trials == straight


def _work(folder):
    list(study(folder, trials=12).run(ranges(), lambda c: time.sleep(0.02) or hill(c)))


def test_processes_share_a_study(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_work, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    trials = study(tmp_path, trials=12).study.trials
    assert [t.number for t in trials] == list(range(12))
    assert all(t.value == hill(t.params) for t in trials)


def test_a_trial_without_a_value_is_not_the_best(tmp_path):
    journal = study(tmp_path, trials=6, goal="maximize")
    values = iter([1.0, float("nan"), 3.0, float("inf"), 2.0, float("nan")])
    list(journal.run(ranges(), lambda chosen: next(values)))
    assert journal.best()["value"] == 3.0
    assert list(journal.run(ranges(), hill)) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["x=interval(0,1)"], "search.metric"),
        (["search.metric=loss", "x=1"], "needs a range"),
        (["search.metric=loss", "search.goal=up", "x=interval(0,1)"], "minimize"),
        (["search.metric=loss", "search.trials=0", "x=interval(0,1)"], "search.trials"),
        (["search.metric=loss", "search.trials=many", "x=interval(0,1)"], "search.trials"),
        (["search.metric=loss", "search.colour=red", "x=interval(0,1)"], "search.colour"),
        (["search.metric=loss", "x=interval(0,"], "x"),
    ],
)
def test_what_cannot_be_understood_is_told(arguments, named):
    with pytest.raises(UserError, match=named):
        understand(arguments)


@pytest.mark.parametrize("text", ["interval(1,0)", "range(3,3)", "tag(log,interval(0,1))"])
def test_a_range_that_is_none_is_told(tmp_path, text):
    _, bad, _ = understand(["search.metric=loss", f"x={text}"])
    with pytest.raises(UserError, match="x: "):
        list(study(tmp_path).run(bad, hill))


def test_an_experiment_is_searched_and_the_search_continued(tmp_path, capsys):
    command = [
        *("experiment=umup/smoke", "only.parts=[low_precision]", "only.arms=[umup]"),
        *("search.metric=validation_loss", f"outputs={tmp_path}"),
        "parts.low_precision.arms.umup.log2_rate=interval(-4, 1)",
    ]
    assert search([*command, "search.trials=2"]) == 0
    first = capsys.readouterr().out
    assert search([*command, "search.trials=3"]) == 0
    second = capsys.readouterr().out
    assert first.count("\ntrial ") + first.startswith("trial ") == 2
    assert second.startswith("trial 2: validation_loss ")
    (folder,) = (tmp_path / "search" / "umup").iterdir()
    best = json.loads((folder / "best.json").read_text())
    assert list(best["overrides"]) == ["parts.low_precision.arms.umup.log2_rate"]
    assert len(list((folder / "trials" / "umup" / "smoke").iterdir())) == 3
    # The report shows runs, not trials.
    assert not (tmp_path / "umup").exists()
    with pytest.raises(UserError, match="validation_loss"):
        search([*command, "search.metric=los"])
