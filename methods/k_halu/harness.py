"""The two tasks for lm-evaluation-harness, scored by this package."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ritornello.common.evaluation import Sample
from ritornello.methods.k_halu.binary_list import binary, parse_binary_list
from ritornello.methods.k_halu.data import sample_from_row
from ritornello.methods.k_halu.metrics import multilabel_macro, set_scores
from ritornello.methods.k_halu.prompts import likelihood_context, list_prompt, numbered
from ritornello.methods.k_halu.selection import select_top_k

__all__ = [
    "likelihood_scores",
    "likelihood_text",
    "list_scores",
    "list_target",
    "list_text",
    "official_f1",
    "official_precision",
    "official_recall",
    "options",
    "write_lm_eval_tasks",
]

_MODULE = "k_halu_functions"
_MACRO = ("official_f1", "official_precision", "official_recall")


class _Called(str):
    """The name of a function that the YAML file calls."""


def write_lm_eval_tasks(folder: str | Path, dataset: str = "J-Seo/k_halu_samples") -> list[Path]:
    """Writes `ritornello_k_halu_log` and `ritornello_k_halu_em`.

    Run them with `lm_eval --include_path <folder> --tasks ritornello_k_halu_log`. The harness
    calls this package for prompts and scores, so it must be installed there.

    Args:
        folder: where the two YAML files and the module they name go.
        dataset: a hub id, or a .jsonl file.
    """
    import yaml

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source: dict[str, Any] = {"dataset_path": dataset, "test_split": "test"}
    if dataset.endswith((".jsonl", ".json")):
        source = {
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(Path(dataset).resolve())}},
            "test_split": "test",
        }
    log = {
        "task": "ritornello_k_halu_log",
        **source,
        "output_type": "multiple_choice",
        "doc_to_text": _Called("likelihood_text"),
        "doc_to_choice": _Called("options"),
        "doc_to_target": "label",
        "process_results": _Called("likelihood_scores"),
        "metric_list": [_mean("acc_norm"), _mean("item_f1")]
        + [
            {"metric": name, "aggregation": _Called(name), "higher_is_better": True}
            for name in _MACRO
        ],
    }
    em = {
        "task": "ritornello_k_halu_em",
        **source,
        "output_type": "generate_until",
        "doc_to_text": _Called("list_text"),
        "doc_to_target": _Called("list_target"),
        "process_results": _Called("list_scores"),
        "metric_list": [_mean("acc"), _mean("acc_ours")],
    }

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(
        _Called, lambda dumper, name: dumper.represent_scalar("!function", f"{_MODULE}.{name}")
    )
    paths = []
    for config in (log, em):
        path = folder / f"{config['task']}.yaml"
        path.write_text(yaml.dump(config, Dumper=Dumper, sort_keys=False), encoding="utf-8")
        paths.append(path)
    module = folder / f"{_MODULE}.py"
    module.write_text(f"from {__name__} import *  # noqa: F403\n", encoding="utf-8")
    return [*paths, module]


def likelihood_text(doc: Mapping[str, Any]) -> str:
    """The context of protocol A."""
    return likelihood_context(_sample(doc))


def options(doc: Mapping[str, Any]) -> list[str]:
    """The numbered options."""
    return numbered(_sample(doc))


def list_text(doc: Mapping[str, Any]) -> str:
    """The prompt of protocol B."""
    return list_prompt(_sample(doc))


def list_target(doc: Mapping[str, Any]) -> str:
    """The list that is right."""
    return str(list(binary(_sample(doc).gold)))


def likelihood_scores(
    doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]
) -> dict[str, Any]:
    """Scores of one question from the harness's (log-likelihood, greedy) pairs."""
    sample = _sample(doc)
    lengths = [len(option) for option in numbered(sample)]
    picked = select_top_k([ll for ll, _ in results], lengths, len(sample.gold))
    scores = set_scores(sample.gold, picked)
    pair = (sample.gold, picked)
    return {"acc_norm": scores["set_match"], "item_f1": scores["f1"], **dict.fromkeys(_MACRO, pair)}


def list_scores(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Exact match of one reply under both parsers."""
    right = binary(_sample(doc).gold)
    return {
        "acc": float(parse_binary_list(results[0], compat=True) == right),
        "acc_ours": float(parse_binary_list(results[0]) == right),
    }


def official_f1(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    """Macro F1 over option places, from (right, picked) pairs."""
    return _macro(pairs)["f1"]


def official_precision(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    """Macro precision over option places."""
    return _macro(pairs)["precision"]


def official_recall(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    """Macro recall over option places."""
    return _macro(pairs)["recall"]


def _mean(metric: str) -> dict[str, Any]:
    return {"metric": metric, "aggregation": "mean", "higher_is_better": True}


def _macro(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Mapping[str, float]:
    return multilabel_macro([gold for gold, _ in pairs], [picked for _, picked in pairs])


def _sample(doc: Mapping[str, Any]) -> Sample:
    return sample_from_row(doc, 0, "document")
