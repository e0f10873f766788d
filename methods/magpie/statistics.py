"""Numbers about a synthesised data set, and the page that states them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ritornello.methods.magpie.metrics import distinct_2, is_request, rule_tag

Row = Mapping[str, Any]
_TAGS = ("difficulty", "input_quality", "primary_tag")


def summarize(
    rows: Sequence[Row], kept: Sequence[Row], final: Sequence[Row], pairs: Sequence[Row]
) -> dict[str, object]:
    """Counts and distributions.

    Args:
        rows: everything sampled, with `state` and `drop_reason`.
        kept: what was answered, tagged and embedded.
        final: what passed the filter.
        pairs: preference pairs.
    """
    texts = [str(row["instruction"]) for row in kept]
    stats: dict[str, object] = {
        "sampled": len(rows),
        "natural_stop": sum(bool(row["natural_stop"]) for row in rows),
        "dropped": dict(Counter(str(r["drop_reason"]) for r in rows if r["state"] == "DROPPED")),
        "sanitize_class": _histogram(rows, "instruction_sanitize_class_num"),
        "kept": len(kept),
        "requests": sum(map(is_request, texts)),
        "distinct_2": distinct_2(texts),
        "truncated_responses": sum(row["response_finish_reason"] == "length" for row in kept),
        "repeats": sum(int(row["repeat_count"]) > 0 for row in kept),
        "min_neighbor_distance": _quantiles(
            [d for r in kept if (d := r["min_neighbor_distance"]) is not None]
        ),
        "instruction_characters": _quantiles([len(text) for text in texts]),
        "response_characters": _quantiles([len(str(row["response"])) for row in kept]),
        "tags": {name: _histogram(kept, name) for name in _TAGS if kept and name in kept[0]},
        "final": len(final),
        "preference_pairs": len(pairs),
    }
    if kept and "primary_tag" in kept[0]:
        agree = [row["primary_tag"] == rule_tag(str(row["instruction"])) for row in kept]
        stats["agreement_with_rule_tags"] = sum(agree) / len(agree)
    return stats


def data_card(stats: Mapping[str, Any], *, model: str, pre_query: str) -> str:
    """The data set's page in Markdown: origin, terms, statistics."""
    numbers = [
        ("queries sampled", stats["sampled"]),
        ("ended by the model itself", stats["natural_stop"]),
        ("kept after sanitising", stats["kept"]),
        ("requests (a question mark or a request word)", stats["requests"]),
        ("with near-duplicates", stats["repeats"]),
        ("answers cut off by the token budget", stats["truncated_responses"]),
        ("kept by the filter", stats["final"]),
        ("preference pairs", stats["preference_pairs"]),
        ("distinct 2-grams / 2-grams", f"{stats['distinct_2']:.3f}"),
    ]
    if "agreement_with_rule_tags" in stats:
        share = f"{stats['agreement_with_rule_tags']:.2f}"
        numbers.append(("task tags that agree with key-word rules", share))
    lines = [
        "# Synthesised instruction data",
        "",
        f"Written by `{model}` from its own pre-query template, without seed questions (Magpie, "
        "arXiv 2406.08464).",
        "",
        "```",
        pre_query,
        "```",
        "",
        "**Terms.** Generated text inherits the terms of the model that wrote it: check its "
        "licence before training on it or passing it on. Nothing here was checked by a person.",
        "",
        *_table(("quantity", "value"), numbers),
    ]
    for title, histogram in (("dropped", stats["dropped"]), *stats["tags"].items()):
        lines += ["", f"## {title}", "", *_table((title, "rows"), histogram.items())]
    for title in ("min_neighbor_distance", "instruction_characters", "response_characters"):
        lines += ["", f"## {title}", "", *_table(("quantile", "value"), stats[title].items())]
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows) -> list[str]:
    body = [f"| {name} | {value} |" for name, value in rows]
    return [f"| {header[0]} | {header[1]} |", "|---|---|", *body]


def _histogram(rows: Sequence[Row], field: str) -> dict[str, int]:
    return dict(sorted(Counter(str(row.get(field)) for row in rows).items()))


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    finite = [float(value) for value in values if np.isfinite(value)]
    if not finite:
        return {}
    levels = (0.0, 0.1, 0.5, 0.9, 1.0)
    return {f"{q:.0%}": round(float(np.quantile(finite, q)), 4) for q in levels}
