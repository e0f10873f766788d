"""Every `ritornello` command in the documents composes: keys exist, values parse."""

import os
import re
import shlex
from pathlib import Path

import pytest

from ritornello.experiments.app import check_arguments, compose_config, papers

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "README.md",
    *sorted(ROOT.glob("methods/*/README.md")),
    *sorted(ROOT.glob("experiments/*/README.md")),
]
COMMAND = re.compile(r"\britornello ((?:-m )?experiment=(?:\\\n|[^`\n])*)")


def _commands() -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        for match in COMMAND.finditer(document.read_text(encoding="utf-8")):
            command = match[1].replace("\\\n", " ")
            if "<" not in command and "…" not in command:
                found.append((document.relative_to(ROOT).as_posix(), command))
    return found


def _first_of_each(argument: str) -> str:
    """An override as one job of its sweep sees it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    override = OverridesParser.create().parse_override(argument)
    if not override.is_sweep_override():
        return argument
    return f"{argument.partition('=')[0]}={next(override.sweep_string_iterator())}"


def _anchor(heading: str) -> str:
    """What a heading is called in a link: lower case, no punctuation, dashes for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        place, _, anchor = link.partition("#")
        target = document.parent / place if place else document
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(_anchor, headings), link


def test_documents_show_commands():
    assert len(_commands()) > len(papers()) / 2


@pytest.mark.parametrize(("document", "command"), _commands())
def test_a_documented_command_composes(document, command):
    if command.count("'") % 2:  # the command itself stood in quotes
        command = command.rstrip("'")
    words = shlex.split(os.path.expandvars(command), comments=True)
    arguments = [w for w in words if "=" in w and not w.startswith("hydra")]
    check_arguments(arguments)
    compose_config([*map(_first_of_each, arguments), "device=cpu"])
