"""The page people look at, in a real browser: loads, filters, sorts, fetches nothing."""

import json
import os
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from ritornello.experiments import overview, settings
from ritornello.experiments.app import compose_config, papers, resolve

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"


def fake_run(
    outputs: Path, paper: str, verdict: str, profile: str = "small", name: str = "0123"
) -> None:
    folder = outputs / paper / profile / name
    (folder / "figures").mkdir(parents=True)
    (folder / "figures" / "one.png").write_bytes(b"\x89PNG")
    (folder / "report.html").write_text("<p>report</p>")
    content = {
        "verdicts": [
            {
                "claim": "c",
                "statement": HOSTILE,
                "paper": HOSTILE,
                "where": "Table 1",
                "verdict": verdict,
                "quantity": HOSTILE,
                "estimate": 0.5,
                "low": 0.4,
                "high": 0.6,
            }
        ],
        "summary": [
            {"part": HOSTILE, "metric": HOSTILE, "unit": "", "arm": HOSTILE}
            | {"mean": 1.0, "std": None, "count": 1}
        ],
        "totals": {"cells": 1, "cpu_seconds": 2.0, "peak_memory_mib": 3.0},
        "provenance": {"note": HOSTILE},
        "figures": [{"name": "one", "caption": HOSTILE}],
        "failures": {},
        "missing": 0,
    }  # fmt: skip
    (folder / "verdicts.json").write_text(json.dumps(content))


@pytest.fixture
def page_file(tmp_path):
    names = papers()
    fake_run(tmp_path, names[0], "reproduced")
    fake_run(tmp_path, names[1], "contradicted")
    overview.write_index(tmp_path)
    return tmp_path / "report" / "index.html"


def test_every_paper_is_on_the_page_and_hostile_text_is_text(page_file):
    text = page_file.read_text()
    for name in papers():
        assert f'id="{name}"' in text
    assert HOSTILE not in text
    assert "src=x" not in text.replace("&lt;img src=x", "")


def test_a_profile_of_ones_own_is_on_the_page(tmp_path):
    fake_run(tmp_path, "cav2vec", "reproduced", profile="medium")
    overview.write_index(tmp_path)
    text = (tmp_path / "report" / "index.html").read_text()
    assert "../cav2vec/medium/0123/report.html" in text
    assert "PROFILE=medium" in text


def test_earlier_runs_are_linked_with_what_was_changed(tmp_path):
    own = resolve(compose_config(["experiment=rrs/small", "workers=1"]))
    parts = own["parts"] | {"matrices": own["parts"]["matrices"] | {"seeds": [7], "new": 1}}
    for age, (name, config) in enumerate([("new", own), ("old", own | {"parts": parts})]):
        fake_run(tmp_path, "rrs", "reproduced", name=name)
        folder = tmp_path / "rrs" / "small" / name
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
        os.utime(folder / "verdicts.json", (1000 - age, 1000 - age))
    changed = ["parts.matrices.seeds=[7]", "parts.matrices.new=1"]
    assert settings.changed_settings(tmp_path / "rrs/small/new", "rrs", "small") == []
    assert settings.changed_settings(tmp_path / "rrs/small/old", "rrs", "small") == changed
    overview.write_index(tmp_path)
    text = (tmp_path / "report" / "index.html").read_text()
    assert 'href="../rrs/small/new/report.html">Full report' in text
    assert f'href="../rrs/small/old/report.html">{" ".join(changed)}<' in text


@pytest.mark.parametrize("rubbish", ["", "{", "[]", "{}", "null"])
def test_a_damaged_run_is_passed_over(tmp_path, rubbish):
    fake_run(tmp_path, "rrs", "reproduced")
    folder = tmp_path / "rrs" / "small" / "4567"
    folder.mkdir()
    (folder / "verdicts.json").write_text(rubbish)
    [(run, _)] = overview.finished_runs("rrs", tmp_path)["small"]
    assert run.name == "0123"


def test_links_of_the_page_lead_to_files(page_file):
    import re

    links = re.findall(r'(?:href|src)="(\.\./[^"]+)"', page_file.read_text())
    assert len(links) >= 4
    for link in links:
        assert (page_file.parent / link).exists(), link


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_works_in_a_browser(page_file):
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        problems, fetched = [], []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: fetched.append(request.url))
        page.goto(page_file.as_uri())
        assert not [url for url in fetched if not url.startswith(("file:", "data:"))]
        assert page.title() == "Ritornello: do the papers hold?"
        assert page.locator(".paper:visible").count() == len(papers())
        # Nothing is wider than a phone.
        assert page.evaluate("document.documentElement.scrollWidth") <= 390

        page.select_option("#verdict", "contradicted")
        visible = page.locator(".paper:visible")
        assert papers()[1] in [visible.nth(i).get_attribute("id") for i in range(visible.count())]
        assert papers()[0] not in [
            visible.nth(i).get_attribute("id") for i in range(visible.count())
        ]
        page.select_option("#verdict", "")
        page.fill("#search", papers()[0])
        assert page.locator(f"#{papers()[0]}").is_visible()
        assert "paper" in page.locator("#shown").inner_text()
        page.fill("#search", "no paper has these words")
        assert page.locator(".paper:visible").count() == 0
        page.fill("#search", "")
        page.select_option("#sort", "contradicted")
        counts = page.eval_on_selector_all(
            ".paper", "nodes => nodes.map(n => Number(n.dataset.contradicted))"
        )
        assert counts == sorted(counts, reverse=True)
        assert not [p for p in problems if "ERR_FILE" not in p and "png" not in p.lower()]
        browser.close()
