"""The example of the README runs as it stands."""

import re
from pathlib import Path

import ritornello.methods.supercorrect as supercorrect


def test_the_example_runs():
    text = (Path(supercorrect.__file__).parent / "README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(block.splitlines()) <= 15
    exec(compile(block, "README.md", "exec"), {})
