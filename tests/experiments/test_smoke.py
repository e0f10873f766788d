"""Every paper's smoke profile runs through the real command and leaves a whole run directory."""

import json
import subprocess
import sys

import pytest

from ritornello.experiments.app import papers


def ritornello(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "ritornello", *arguments], cwd=cwd, capture_output=True, text=True
    )


@pytest.mark.parametrize("paper", papers())
def test_smoke_profile(paper, tmp_path):
    done = ritornello(f"experiment={paper}/smoke", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (run,) = (tmp_path / "outputs" / paper / "smoke").iterdir()
    report = json.loads((run / "verdicts.json").read_text())
    assert not report["failures"]
    assert not report["missing"]
    assert report["summary"]
    # Smoke judges nothing.
    assert {v["verdict"] for v in report["verdicts"]} == {"not run"}
    page = (run / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert report["figures"], "no figure was drawn"
    for figure in report["figures"]:
        assert (run / "figures" / f"{figure['name']}.png").stat().st_size > 1000
    assert "could not be drawn" not in done.stdout
    again = ritornello(f"experiment={paper}/smoke", cwd=tmp_path)
    assert again.returncode == 0
    total = report["totals"]["cells"]
    assert f"{total} of {total} cells are already measured" in again.stdout
