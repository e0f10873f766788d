"""All papers together: the list, the recorded results, the index page."""

import json
import re
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from ritornello.common.errors import UserError
from ritornello.common.reporting import Card, Verdict, load_card
from ritornello.common.reporting.claims import Outcome
from ritornello.common.reporting.page import (
    markdown_table,
    template_environment,
    template_text,
)
from ritornello.common.runs.store import write_atomically
from ritornello.experiments.app import PROFILES, papers, profiles
from ritornello.experiments.settings import changed_settings

_TABLE = re.compile(r"(<!-- results:begin -->\n).*?(<!-- results:end -->)", re.DOTALL)
_PAPERS = re.compile(r"(<!-- papers:begin -->\n).*?(<!-- papers:end -->)", re.DOTALL)

# What is shown of a run; a file without it is none of ours.
_NEEDED = {"verdicts", "summary", "totals", "provenance", "failures", "missing"}


def card_of(paper: str) -> Card:
    return load_card(resources.files("ritornello.experiments").joinpath(paper, "card.yaml"))


def recorded(paper: str) -> dict[str, Any]:
    """What `results.json` holds, by profile; empty before the first `make record-<paper>`."""
    file = resources.files("ritornello.experiments").joinpath(paper, "results.json")
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def reported_profiles(paper: str) -> list[str]:
    """`small`, `paper`, then what else the paper has; a smoke run judges nothing."""
    return ["small", "paper", *(p for p in profiles(paper) if p not in PROFILES)]


def finished_runs(paper: str, outputs: Path) -> dict[str, list[tuple[Path, dict[str, Any]]]]:
    """The finished runs of each reported profile, newest first: folder and verdicts.json."""
    found: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    for profile in reported_profiles(paper):
        files = (outputs / paper / profile).glob("*/verdicts.json")
        for file in sorted(files, key=lambda f: f.stat().st_mtime, reverse=True):
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
            except ValueError:
                continue
            if isinstance(content, dict) and content.keys() >= _NEEDED:
                found.setdefault(profile, []).append((file.parent, content))
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
        here, past = finished_runs(paper, outputs).get("small"), recorded(paper).get("small")
        table.add_row(
            paper,
            count_verdicts(past) if past else "–",
            count_verdicts(here[0][1]) if here else "not run",
            card_of(paper).title,
        )
    Console().print(table)
    return 0


def record(paper: str, outputs: Path) -> int:
    """Copies each profile's newest run into `results.json` and the card's table.

    Settings that are not the profile's own are kept with it and told on the card.

    Raises:
        UserError: nothing to record, or a run in which cells failed or are missing.
    """
    runs = finished_runs(paper, outputs)
    if not runs:
        raise UserError(f"{paper} was not run here: make reproduce-{paper} comes first")
    content = recorded(paper)
    for profile, [(folder, run), *_] in runs.items():
        if run["failures"] or run["missing"]:
            raise UserError(f"{folder} has failed or missing cells; run it to the end first")
        content[profile] = {
            key: run[key] for key in ("seeds", "totals", "verdicts", "summary", "provenance")
        }
        if changed := changed_settings(folder, paper, profile):
            content[profile]["changed"] = changed
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
    _refresh_documents()
    print(f"recorded {', '.join(runs)} of {paper}")
    return 0


def _refresh_documents() -> None:
    """Rewrites the front page's table of papers and docs/findings.md from all `results.json`."""
    root = Path(str(resources.files("ritornello"))).resolve().parents[1]
    readme = root / "README.md"
    if not readme.exists():  # an installed wheel has none
        return
    write_atomically(root / "docs" / "findings.md", _findings())
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


def _findings() -> str:
    """Everything that did not come out as the papers say, with where each paper deviates."""
    lines = [
        "# What did not come out",
        "",
        "Every claim that the small profiles contradicted or could not decide, from the recorded "
        "runs (written by `make record-<paper>`). Each paper's card explains its cases and "
        "numbers what differs from the paper. Where three seeds had left claims open and the time "
        "allowed it, the small profiles take five or eight, the first three among them: read an "
        "interval that just clears its margin there with that in mind.",
        "",
    ]
    for paper in papers():
        past = recorded(paper).get("small")
        verdicts = [Verdict(**v) for v in past["verdicts"]] if past else []
        open_ones = [v for v in verdicts if v.verdict in ("contradicted", "inconclusive")]
        home = "experiments" if paper.startswith("compose_") else "methods"
        card = f"../{home}/{paper}/README.md"
        lines += [f"## [{card_of(paper).title}]({card})", ""]
        anchor = "" if paper.startswith("compose_") else "#what-differs-from-the-paper"
        lines.append(f"Deviations: [{paper}]({card}{anchor}).")
        if past is None:
            lines += ["", "Not recorded.", ""]
            continue
        lines += ["", markdown_table(open_ones, "small") if open_ones else "Nothing.", ""]
    return "\n".join(lines)


def _tables(content: dict[str, Any]) -> str:
    pieces = []
    for profile in dict.fromkeys(["small", "paper", *content]):
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
        if run.get("changed"):
            cost += f" With other settings than the profile's: `{'`, `'.join(run['changed'])}`."
        pieces += [markdown_table(verdicts, profile), "", cost]
    return "\n".join(pieces)


def write_index(outputs: Path) -> int:
    """Gathers all papers into `outputs/report/index.html`: one static page, nothing fetched."""
    rows = [_index_row(paper, outputs) for paper in papers()]
    tally = Counter(dict.fromkeys(get_args(Outcome), 0))
    for row in rows:
        tally.update(row["counts"])
    page = (
        template_environment()
        .get_template("index.html.j2")
        .render(
            rows=rows,
            tally=dict(tally),
            bench=_bench(outputs),
            style=template_text("style.css"),
            script=template_text("index.js"),
        )
    )
    target = outputs / "report" / "index.html"
    try:
        write_atomically(target, page)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from error
    print(f"{target}")
    return 0


def _bench(outputs: Path) -> dict[str, Any]:
    """Timings of `make bench` by suite: made here first, else what was recorded."""
    recorded_file = resources.files("ritornello.experiments.benchmarks").joinpath("results.json")
    content: dict[str, Any] = {}
    for file in (recorded_file, outputs / "bench.json"):
        if file.is_file():
            content |= json.loads(file.read_text(encoding="utf-8"))
    return content


def _link(folder: Path, outputs: Path) -> str:
    return f"../{folder.relative_to(outputs).as_posix()}"


def _index_row(paper: str, outputs: Path) -> dict[str, Any]:
    """What the page shows of one paper: runs made here first, else what was recorded."""
    runs = {}
    here, past = finished_runs(paper, outputs), recorded(paper)
    for profile in reported_profiles(paper):
        (folder, content), *others = here.get(profile) or [(None, past.get(profile))]
        if content is None:
            continue
        link = None if folder is None else _link(folder, outputs)
        runs[profile] = {
            "content": content,
            "page": link and f"{link}/report.html",
            "figures": [
                {"href": f"{link}/figures/{f['name']}.png", "caption": f["caption"]}
                for f in content.get("figures", ())
                if link
            ],
            "verdicts": [Verdict(**v) for v in content["verdicts"]],
            "others": [
                {
                    "page": f"{_link(other, outputs)}/report.html",
                    "changed": changed_settings(other, paper, profile),
                    "verdicts": count_verdicts(run),
                }
                for other, run in others
            ],
        }
    judged = next(iter(runs.values()), None)
    counts = Counter(v.verdict for v in judged["verdicts"]) if judged else Counter()
    figures = judged["figures"] if judged else []
    return {
        "card": card_of(paper),
        "composition": paper.startswith("compose_"),
        "picture": figures[0] if figures else None,
        "runs": runs,
        "counts": dict(counts.most_common()),
        "cost": judged["content"]["totals"]["cpu_seconds"] if judged else 0,
    }
