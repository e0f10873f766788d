"""The examples of the cards run as they stand: from an installed wheel, outside the repository,
in a project that has its own `common` and `methods`."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from ritornello.common.cache import file_lock

ROOT = Path(__file__).parents[1]
CARDS = sorted((ROOT / "methods").glob("*/README.md"))
DOCUMENTS = [ROOT / "README.md", *CARDS]


def examples(readme: Path) -> list[str]:
    """The python blocks of a card's first section, or of the front page."""
    text = readme.read_text(encoding="utf-8")
    if readme.parent != ROOT:
        text = text.split("## Use it in your code")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture(scope="session")
def installed_python(tmp_path_factory) -> Path:
    """An environment in which the wheel is installed and its dependencies are importable."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # one for all processes
    home = shared / "wheel-environment"
    python = home / "bin" / "python"
    with file_lock(shared / "wheel-environment.lock"):
        if not (home / "ready").exists():
            wheels = shared / "wheels"
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
            build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
            subprocess.run([*build, "--wheel-dir", str(wheels), str(ROOT)], check=True, cwd=shared)
            venv.create(home, with_pip=False)
            (wheel,) = wheels.glob("ritornello-*.whl")
            packages = subprocess.run(
                [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            install = [*pip, "install", "--quiet", "--no-deps", "--target", packages, str(wheel)]
            subprocess.run(install, check=True, cwd=shared)
            # Dependencies come from the running environment; its editable install does not.
            (Path(packages) / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
            (home / "ready").touch()
    return python


@pytest.fixture
def project(tmp_path) -> Path:
    """A stranger's project with folders of the same names as ours."""
    for name in ("common", "methods", "experiments", "conf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'the project'\n")
    return tmp_path


def run(python: Path, code: str, project: Path) -> subprocess.CompletedProcess:
    script = project / "example.py"
    script.write_text(code)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [python, str(script)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("readme", DOCUMENTS, ids=lambda p: p.parent.name)
def test_the_example_runs_as_it_stands(readme, installed_python, project):
    (code,) = examples(readme)
    assert len(code.splitlines()) <= 15
    done = run(installed_python, code, project)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_wheel_is_whole_and_disturbs_nothing(installed_python, project):
    """The wheel is what runs, beside the project's own packages, with its YAML and C++ files."""
    code = """
import common, methods, ritornello
from importlib import resources
assert common.OWNER == methods.OWNER == "the project"
assert "site-packages" in ritornello.__file__
from ritornello.experiments.app import build_plan, compose_config, papers, resolve
assert papers()
for paper in papers():
    assert build_plan(resolve(compose_config([f"experiment={paper}/smoke"]))).cells()
root = resources.files("ritornello")
assert list(root.joinpath("common", "kernels", "selective_scan").glob("*.cpp"))
assert root.joinpath("common", "reporting", "templates", "run.html.j2").is_file()
"""
    done = run(installed_python, code, project)
    assert done.returncode == 0, done.stderr[-3000:]
