"""All papers together: the list, the recorded results, the index page."""

import json
import re
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from ritornello.common.errors import UserError
from ritornello.common.reporting import Card, Verdict, load_card
from ritornello.common.reporting.page import (
    format_interval,
    markdown_table,
    template_environment,
)
from ritornello.common.runs.store import write_atomically
from ritornello.experiments.app import PROFILES, papers

_TABLE = re.compile(r"(<!-- results:begin -->\n).*?(<!-- results:end -->)", re.DOTALL)
_PAPERS = re.compile(r"(<!-- papers:begin -->\n).*?(<!-- papers:end -->)", re.DOTALL)


def card_of(paper: str) -> Card:
    return load_card(resources.files("ritornello.experiments").joinpath(paper, "card.yaml"))


def recorded(paper: str) -> dict[str, Any]:
    """What `results.json` holds, by profile; empty before the first `make record-<paper>`."""
    file = resources.files("ritornello.experiments").joinpath(paper, "results.json")
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def latest_runs(paper: str, outputs: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The newest finished run of each profile: its folder and its verdicts.json."""
    found = {}
    for profile in PROFILES:
        files = sorted(
            (outputs / paper / profile).glob("*/verdicts.json"), key=lambda f: f.stat().st_mtime
        )
        for file in reversed(files):
            try:
                found[profile] = file.parent, json.loads(file.read_text(encoding="utf-8"))
                break
            except ValueError:
                continue
    return found


def count_verdicts(content: dict[str, Any]) -> str:
    """`5 reproduced, 1 inconclusive`."""
    counts = Counter(v["verdict"] for v in content["verdicts"])
    return ", ".join(f"{n} {name}" for name, n in counts.most_common())


def list_papers(outputs: Path) -> int:
    """Prints every paper with its state."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("paper", "recorded (small)", "here (small)", "title"):
        table.add_column(name, overflow="fold")
    for paper in papers():
        here, past = latest_runs(paper, outputs).get("small"), recorded(paper).get("small")
        table.add_row(
            paper,
            count_verdicts(past) if past else "–",
            count_verdicts(here[1]) if here else "not run",
            card_of(paper).title,
        )
    Console().print(table)
    return 0


def record(paper: str, outputs: Path) -> int:
    """Copies the newest whole runs into `results.json` and the card's table.

    Raises:
        UserError: nothing to record, or a run in which cells failed or are missing.
    """
    runs = {p: r for p, r in latest_runs(paper, outputs).items() if p != "smoke"}
    if not runs:
        raise UserError(f"{paper} was not run here: make reproduce-{paper} comes first")
    content = recorded(paper)
    for profile, (folder, run) in runs.items():
        if run["failures"] or run["missing"]:
            raise UserError(f"{folder} has failed or missing cells; run it to the end first")
        content[profile] = {
            key: run[key] for key in ("seeds", "totals", "verdicts", "summary", "provenance")
        }
    folder = Path(str(resources.files("ritornello.experiments").joinpath(paper)))
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / "results.json", text)
    readme = Path(str(resources.files("ritornello.methods").joinpath(paper, "README.md")))
    if not readme.exists():  # a composition has its README beside the experiment
        readme = folder / "README.md"
    page = readme.read_text(encoding="utf-8")
    if not _TABLE.search(page):
        raise UserError(f"{readme.name} of {paper} has no results:begin and results:end markers")
    table = _TABLE.sub(lambda m: m[1] + _tables(content) + "\n" + m[2], page)
    write_atomically(readme, table)
    _refresh_front_page()
    print(f"recorded {', '.join(runs)} of {paper}")
    return 0


def _refresh_front_page() -> None:
    """Rewrites the table of papers in the repository's README from all `results.json`."""
    readme = Path(str(resources.files("ritornello"))).resolve().parents[1] / "README.md"
    if not readme.exists():  # an installed wheel has none
        return
    lines = ["| paper | what was measured (`small`) | CPU time |", "|---|---|---|"]
    for paper in papers():
        past = recorded(paper).get("small")
        home = "experiments" if paper.startswith("compose_") else "methods"
        name = f"[`{paper}`]({home}/{paper}/README.md) {card_of(paper).title}"
        if past is None:
            lines.append(f"| {name} | not recorded | |")
            continue
        minutes = past["totals"]["cpu_seconds"] / 60
        lines.append(f"| {name} | {count_verdicts(past)} | {minutes:.1f} min |")
    page = readme.read_text(encoding="utf-8")
    table = "\n".join(lines)
    write_atomically(readme, _PAPERS.sub(lambda m: m[1] + table + "\n" + m[2], page))


def _tables(content: dict[str, Any]) -> str:
    pieces = []
    for profile in ("small", "paper"):
        if profile not in content:
            pieces.append(f"The `{profile}` profile was not run.")
            continue
        run = content[profile]
        verdicts = [Verdict(**v) for v in run["verdicts"]]
        machine = run["provenance"]["code"][0]
        cost = (
            f"Seeds {', '.join(map(str, run['seeds']))}; {run['totals']['cells']} cells, "
            f"{run['totals']['cpu_seconds']:.0f} CPU seconds, "
            f"peak {run['totals']['peak_memory_mib'] / 1024:.1f} GiB a worker, "
            f"on {machine['environment']['processor']}."
        )
        pieces += [markdown_table(verdicts, profile), "", cost]
    return "\n".join(pieces)


def write_index(outputs: Path) -> int:
    """Gathers all papers into `outputs/report/index.html`."""
    rows = []
    for paper in papers():
        runs, past = latest_runs(paper, outputs), recorded(paper)
        shown = {
            profile: {
                "content": content,
                "page": f"../{folder.relative_to(outputs).as_posix()}/report.html",
                "verdicts": [Verdict(**v) for v in content["verdicts"]],
            }
            for profile, (folder, content) in runs.items()
            if profile != "smoke"
        }
        for profile, content in past.items():
            if profile not in shown:
                shown[profile] = {
                    "content": content,
                    "page": None,
                    "verdicts": [Verdict(**v) for v in content["verdicts"]],
                }
        rows.append({"card": card_of(paper), "runs": shown})
    page = _index_template().render(rows=rows, interval=format_interval, style=_style())
    target = outputs / "report" / "index.html"
    try:
        write_atomically(target, page)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from error
    print(f"{target}")
    return 0


def _index_template() -> jinja2.Template:
    return template_environment().get_template("index.html.j2")


def _style() -> str:
    return (
        resources.files("ritornello.common.reporting")
        .joinpath("templates", "style.css")
        .read_text(encoding="utf-8")
    )
