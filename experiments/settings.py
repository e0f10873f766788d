"""In what the settings of a finished run differ from those of its profile as it stands."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ritornello.experiments.app import RUNTIME_KEYS, compose_config, resolve


def changed_settings(run: Path, paper: str, profile: str) -> list[str]:
    """`key=value` for every setting of a run's folder that is not the profile's own.

    Keys that the run lacks are named as `~key`. The device, and what decides only how a run is
    carried out, are left out; so is everything of a run without its `config.yaml`.
    """
    file = run / "config.yaml"
    if not file.is_file():
        return []
    made = dict(_leaves(OmegaConf.to_container(OmegaConf.load(file))))
    own = _own(paper, profile)
    changed = [f"{key}={value}" for key, value in made.items() if own.get(key) != value]
    return changed + [f"~{key}" for key in own if key not in made]


@functools.cache
def _own(paper: str, profile: str) -> dict[str, str]:
    config = compose_config([f"experiment={paper}/{profile}", "device=cpu"])
    return dict(_leaves(resolve(config)))


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, value as JSON), lists as one value."""
    for key, value in node.items():
        if key == "device" or (not path and key in (*RUNTIME_KEYS, "trainer")):
            continue
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", json.dumps(value)
