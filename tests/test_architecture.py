"""The arrows run one way, and every paper's folders have the same shape."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
METHODS = sorted(p.name for p in (ROOT / "methods").iterdir() if (p / "__init__.py").exists())
EXPERIMENTS = sorted(p.parent.name for p in (ROOT / "experiments").glob("*/card.yaml"))
README_SECTIONS = [
    "## Use it in your code",
    "## Reproduce",
    "## Results",
    "## What differs from the paper",
    "## How it works",
    "## Limits",
]
# Not in methods or common: configuration, and pyplot's global state. Trackers import wandb lazily.
FORBIDDEN = ("hydra", "omegaconf", "matplotlib.pyplot")


def imports(file: Path) -> list[tuple[str, int, bool]]:
    """Imported modules with their line, and whether the import runs when the file is imported."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        at_import = id(node) not in inside
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, at_import) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.append((module, node.lineno, at_import))
            found += [(f"{module}.{alias.name}", node.lineno, at_import) for alias in node.names]
    return found


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def place(file: Path, line: int) -> str:
    return f"{file.relative_to(ROOT)}:{line}"


def test_common_knows_no_method_and_no_experiment():
    wrong = [
        f"{place(file, line)} imports {module}"
        for file in sources("common")
        for module, line, _ in imports(file)
        if module.startswith(("ritornello.methods", "ritornello.experiments"))
        or module.split(".")[0] in ("methods", "experiments")
    ]
    assert not wrong


def test_methods_know_no_other_method_and_no_experiment():
    wrong = []
    for file in sources("methods"):
        own = file.relative_to(ROOT / "methods").parts[0]
        for module, line, _ in imports(file):
            other = re.match(r"ritornello\.methods\.(\w+)", module)
            if module.startswith("ritornello.experiments") or (other and other[1] != own):
                wrong.append(f"{place(file, line)} imports {module}")
    assert not wrong


def test_an_experiment_knows_its_own_method_only():
    wrong = []
    for file in sources("experiments"):
        own = file.relative_to(ROOT / "experiments").parts[0]
        if own in ("benchmarks", "app.py", "overview.py", "__init__.py") or own.startswith(
            "compose"
        ):
            continue
        for module, line, _ in imports(file):
            other = re.match(r"ritornello\.methods\.(\w+)", module)
            if other and other[1] != own:
                wrong.append(f"{place(file, line)} imports {module}")
    assert not wrong


def test_methods_and_common_are_free_of_hydra_and_pyplot():
    wrong = [
        f"{place(file, line)} imports {module}"
        for folder in ("methods", "common")
        for file in sources(folder)
        for module, line, _ in imports(file)
        if module.startswith(FORBIDDEN)
    ]
    assert not wrong


def test_imports_are_absolute_from_the_one_root():
    wrong = [
        f"{place(file, line)} imports {module}"
        for folder in ("methods", "common", "experiments")
        for file in sources(folder)
        for module, line, _ in imports(file)
        if module.startswith(".") or module.split(".")[0] in ("methods", "common", "experiments")
    ]
    assert not wrong


@pytest.mark.parametrize("slug", METHODS)
def test_a_method_has_every_part(slug):
    folder = ROOT / "methods" / slug
    readme = (folder / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## .+$", readme, flags=re.MULTILINE)
    assert headings == README_SECTIONS
    assert "<!-- results:begin -->" in readme
    assert len((folder / "__init__.py").read_text().splitlines()) <= 60
    assert (ROOT / "experiments" / slug / "card.yaml").exists()
    assert (ROOT / "experiments" / slug / "experiment.py").exists()
    for profile in ("smoke", "small", "paper"):
        text = (ROOT / "conf" / "experiment" / slug / f"{profile}.yaml").read_text()
        assert text.startswith("# @package _global_\n# ")
    assert any((ROOT / "tests" / "methods" / slug).glob("test_*.py"))


@pytest.mark.parametrize("slug", METHODS)
def test_importing_a_method_is_light_and_silent(slug):
    """A method costs no more than torch at import, and says nothing."""
    code = (
        f"import torch, sys; import ritornello.methods.{slug} as m;"
        "heavy = {'transformers', 'lightning', 'trl', 'peft', 'matplotlib', 'wandb', 'hydra',"
        " 'datasets', 'pandas', 'sklearn', 'scipy', 'timm', 'captum', 'openai', 'triton'};"
        "assert not heavy & set(sys.modules), sorted(heavy & set(sys.modules));"
        "assert all(hasattr(m, name) for name in m.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


@pytest.mark.parametrize("package", ["methods", "common"])
def test_a_bare_import_names_the_right_module(package):
    done = subprocess.run(
        [sys.executable, "-c", f"import {package}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"ritornello.{package}" in done.stderr


def test_names_of_modules_say_what_is_in_them():
    vague = {"utils.py", "helpers.py", "misc.py", "core.py", "method.py", "common.py"}
    assert not [
        f for d in ("methods", "common", "experiments") for f in sources(d) if f.name in vague
    ]
