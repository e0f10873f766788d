"""Composes a configuration, runs its plan, judges, reports."""

import hashlib
import importlib
import inspect
import json
import time
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ritornello.common.errors import UserError
from ritornello.common.runs import Outcome, Part, Plan, RunDirectory
from ritornello.experiments.interrupts import interruptible
from ritornello.experiments.overrides import constructor_arguments

PROFILES = ("smoke", "small", "paper")
# What says how a run is done, not what is measured: not part of a run's identity.
RUNTIME_KEYS = (
    "workers",
    "threads",
    "outputs",
    "strict",
    "fresh",
    "only",
    "tracker",
    "worker",
    "cooperative",
)


@dataclass
class PartConfig:
    """One part: nodes with `_target_` for what measures and for each arm."""

    measure: dict[str, Any] = field(default_factory=dict)
    arms: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0])
    grid: dict[str, Any] = field(default_factory=dict)


@dataclass
class OnlyConfig:
    """Restricts a run to some parts, arms and seeds."""

    parts: list[str] | None = None
    arms: list[str] | None = None
    seeds: list[int] | None = None


@dataclass
class RunConfig:
    """The keys of a run; anything else is an error. `settings` is for values that nodes share.

    With `cooperative`, several runs of one configuration divide its cells; `worker` numbers them in
    a sweep (`-m cooperative=true worker=0,1,2,3`).
    """

    paper: str = "???"
    profile: str = "???"
    parts: dict[str, PartConfig] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    only: OnlyConfig = field(default_factory=OnlyConfig)
    workers: int = 1
    threads: int = 1
    outputs: str = "outputs"
    strict: bool = False
    fresh: bool = False
    cooperative: bool = False
    worker: int = 0
    tracker: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)


def papers() -> list[str]:
    """Slugs of all experiments that have a card."""
    root = resources.files("ritornello.experiments")
    return sorted(d.name for d in root.iterdir() if d.joinpath("card.yaml").is_file())


def instantiate(node: Any, place: str) -> Any:
    """Builds the object a node describes; the one place where Hydra's instantiate is called.

    Raises:
        UserError: an unknown class or argument, or a bad value, with the node's place.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate as build

    try:
        _check_partials(node)
        return build(node, _convert_="all")
    except UserError as error:
        raise UserError(f"{place}: {error}") from error
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise UserError(f"{place}: {_first_line(cause)}") from error


def _check_partials(node: Any) -> None:
    """Binds the arguments of `_partial_` nodes, which nothing else would check before the call.

    Raises:
        UserError: an argument that the target does not take.
    """
    from hydra.utils import get_object

    if isinstance(node, list):
        for item in node:
            _check_partials(item)
    if not isinstance(node, dict):
        return
    for value in node.values():
        _check_partials(value)
    if node.get("_partial_") and "_target_" in node:
        given = {k: v for k, v in node.items() if not (k.startswith("_") and k.endswith("_"))}
        try:
            inspect.signature(get_object(node["_target_"])).bind_partial(**given)
        except (TypeError, ImportError, AttributeError, ValueError) as error:
            raise UserError(f"{node['_target_']}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join(line.strip() for line in lines[:2])


def build_plan(config: dict[str, Any]) -> Plan:
    """The plan a resolved configuration describes; every arm and part is built, so checked."""
    from ritornello.common.training import choose_trainer

    choose_trainer(config.get("trainer", {}))
    parts = {}
    for name, part in config["parts"].items():
        place = f"parts.{name}"
        for key in ("measure", "arms", "seeds"):
            if not part[key]:
                raise UserError(f"{place}.{key} is empty")
        for arm, node in part["arms"].items():
            if node is None:
                raise UserError(f"{place}.arms.{arm} is null: ~{place}.arms.{arm} leaves it out")
        for coordinate, values in part["grid"].items():
            if not isinstance(values, list) or not values:
                raise UserError(f"{place}.grid.{coordinate} must be a list, got {values!r}")
        parts[name] = Part(
            measure=instantiate(part["measure"], f"{place}.measure"),
            arms={a: instantiate(n, f"{place}.arms.{a}") for a, n in part["arms"].items()},
            seeds=part["seeds"],
            grid=part["grid"],
        )
    if not parts:
        raise UserError("parts is empty: an experiment has at least one")
    return Plan(config["paper"], config["profile"], parts)


def fetch_checkpoints(node: Any) -> None:
    """Fetches every hub checkpoint that a configuration names, once, before any cell.

    A node names one by `name_or_path`, as all loaders call it. Tokenizers are tried.

    Raises:
        UserError: one is neither in the cache nor reachable, or damaged.
    """
    from ritornello.common.models.hub import check_checkpoint, load_tokenizer

    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, dict | list):
            fetch_checkpoints(child)
    if isinstance(node, dict) and isinstance(node.get("name_or_path"), str):
        name, revision = node["name_or_path"], node.get("revision")
        tokenizer = str(node.get("_target_")).endswith(".load_tokenizer")
        (load_tokenizer if tokenizer else check_checkpoint)(name, revision)


def run_directory(config: dict[str, Any]) -> RunDirectory:
    """`outputs/<paper>/<profile>/<hash of what is measured>`."""
    measured = {k: v for k, v in config.items() if k not in RUNTIME_KEYS}
    if not measured.get("trainer"):  # the papers' own
        measured.pop("trainer", None)
    digest = hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()[:12]
    root = Path(config["outputs"]).expanduser()
    return RunDirectory(root / config["paper"] / config["profile"] / digest)


def resolve(cfg: DictConfig) -> dict[str, Any]:
    """Plain dictionaries, checked against the schema."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        typed = OmegaConf.merge(OmegaConf.structured(RunConfig), cfg)
        config = OmegaConf.to_container(typed, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(_first_line(error)) from error
    assert isinstance(config, dict)
    check_known("paper", config["paper"], papers())
    check_known("profile", config["profile"], profiles(config["paper"]))
    for key in ("workers", "threads"):
        if config[key] < 1:
            raise UserError(f"{key} must be at least 1, got {config[key]}")
    from ritornello.common.models.hub import resolve_device

    resolve_device(config["device"])
    return config  # type: ignore[return-value]


def run_cells(config: dict[str, Any], store: RunDirectory, **options: Any) -> Outcome:
    """Measures the cells that a configuration selects; `options` as in `common.runs.run`."""
    from ritornello.common.runs import run

    chosen = {key: config[key] for key in ("workers", "threads", "only")}
    with interruptible():
        return run(build_plan, config, store.path, **chosen, **options)


def execute(config: dict[str, Any]) -> int:
    """Runs, judges and reports one resolved configuration; returns the exit status."""
    from ritornello.common.reporting import Results, judge, load_card
    from ritornello.common.reporting.page import Report, write_report
    from ritornello.common.reporting.terminal import CellProgress, claim_table, format_seconds
    from ritornello.common.runs.store import write_atomically

    console = _console()
    paper, profile = config["paper"], config["profile"]
    card = load_card(resources.files("ritornello.experiments").joinpath(paper, "card.yaml"))
    build_plan(config).cells(**config["only"])  # what is wrong is told before a folder is made
    chosen = config["only"]["parts"] or config["parts"]
    fetch_checkpoints([config["parts"][name] for name in chosen])
    store = run_directory(config)
    store.create()
    write_atomically(store.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
    tracker = instantiate(config["tracker"], "tracker") if config["tracker"] else None
    console.print(f"{paper} · {profile} → {store.path}", highlight=False)
    started = time.monotonic()
    outcome = run_cells(
        config,
        store,
        fresh=config["fresh"],
        cooperative=config["cooperative"],
        say=lambda line: console.print(line, highlight=False, markup=False),
        progress=CellProgress,
    )
    results = Results.from_records(outcome.records, store.path)
    report = Report(
        card=card,
        profile=profile,
        verdicts=judge(card, results, profile),
        results=results,
        figures=_draw(paper, results, console),
        config=config,
        records=outcome.records,
        failures=outcome.failures,
        missing=len(outcome.missing) + len(outcome.left_out),
    )
    page = write_report(report, store.path)
    if tracker is not None:
        _track(tracker, report, f"{paper}-{profile}-{store.path.name}", store.path, console)
    console.print(claim_table(report.verdicts, f"{card.title} · {profile}"))
    for cell, why in outcome.failures.items():
        reason = why.strip().splitlines()[-1]
        console.print(f"failed: {cell}: {reason}", style="red", markup=False, highlight=False)
    spent = format_seconds(time.monotonic() - started)
    rest = f" ({len(outcome.left_out)} left out)" if outcome.left_out else ""
    console.print(f"{len(outcome.records)} cells{rest}, {spent}. Page: {page}", highlight=False)
    if outcome.failures or outcome.missing:
        console.print(
            f"{len(outcome.missing)} cells are not measured; the same command tries them again",
            style="red",
        )
        return 1
    if config["strict"] and any(v.verdict == "contradicted" for v in report.verdicts):
        return 3
    return 0


def _console() -> Any:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, 120))


def _track(tracker: Any, report: Any, run_id: str, directory: Path, console: Any) -> None:
    """A tracker that fails costs its own copy only: everything is in the run directory already."""
    try:
        tracker.send(report, run_id, directory)
    except UserError:
        raise
    except Exception as error:
        console.print(f"the tracker failed: {_first_line(error)}", style="yellow", markup=False)


def _draw(paper: str, results: Any, console: Any) -> list:
    """The paper's figures; one that cannot be drawn from a partial table is left out and told."""
    module = importlib.import_module(f"ritornello.experiments.{paper}.experiment")
    drawn = []
    if results.table.empty:
        return drawn
    try:
        for figure in module.figures(results):
            drawn.append(figure)
    except Exception as error:
        console.print(f"a figure could not be drawn: {error!r}", style="yellow", markup=False)
    return drawn


def check_arguments(arguments: list[str]) -> None:
    """Says at once what a mistyped paper or profile should have been.

    Raises:
        UserError: no experiment, an unknown one, or an override that the configuration refuses.
    """
    chosen = [a.partition("=")[2] for a in arguments if a.startswith("experiment=")]
    if not chosen:
        raise UserError(
            "which paper? ritornello experiment=<paper>/<profile>, with profile "
            f"{', '.join(PROFILES)} and paper one of: {', '.join(papers())}"
        )
    for name in chosen[-1].split(","):
        paper, _, profile = name.partition("/")
        check_known("paper", paper, papers())
        check_known("profile", profile or "(none)", profiles(paper))


def profiles(paper: str) -> list[str]:
    """A paper's profiles: those of `PROFILES`, and some of its own."""
    folder = resources.files("ritornello.conf").joinpath("experiment", paper)
    names = (f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))
    return sorted(n for n in names if n != "base")


def check_known(kind: str, name: str, known: list[str]) -> None:
    """Raises UserError for a name that is not known, with the nearest one that is."""
    if name in known:
        return
    near = get_close_matches(name.replace("-", "_"), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise UserError(f"unknown {kind} {name!r}{hint} Known: {', '.join(known)}")


def compose_config(overrides: list[str]) -> DictConfig:
    """Composes a configuration from overrides, as the command does.

    Raises:
        UserError: an unknown key or group, or a value of the wrong type.
    """
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    overrides = constructor_arguments(overrides)
    try:
        with initialize_config_module("ritornello.conf", version_base="1.3"):
            cfg = compose("reproduce", overrides)
            resolve(cfg)
            return cfg
    except OverrideParseException as error:
        raise UserError(
            f"{error.override!r} cannot be read; a value with ~, spaces, commas or brackets needs "
            "quotes within quotes: 'key=\"value\"'"
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(" ".join(str(error).split("\n")[:2]).strip()) from error
