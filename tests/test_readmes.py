"""The examples of the cards run as they stand, outside the repository."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CARDS = sorted((ROOT / "methods").glob("*/README.md"))


def example(readme: Path) -> str:
    section = (
        readme.read_text(encoding="utf-8").split("## Use it in your code")[1].split("\n## ")[0]
    )
    blocks = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert len(blocks) == 1, "one example"
    return blocks[0]


@pytest.mark.parametrize("readme", CARDS, ids=lambda p: p.parent.name)
def test_the_example_runs_as_it_stands(readme, tmp_path):
    code = example(readme)
    assert len(code.splitlines()) <= 15
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
