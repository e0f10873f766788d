"""Rows in the formats of others: ShareGPT, trl's SFT, trl's DPO."""

from collections.abc import Mapping, Sequence
from typing import Any

from ritornello.methods.magpie.generator import conversation

Row = Mapping[str, object]
TAGS = (
    "intent",
    "knowledge",
    "difficulty",
    "input_quality",
    "explanation",
    "primary_tag",
    "other_tags",
    "llama_guard_2",
    "instruct_reward",
    "language",
    "min_neighbor_distance",
    "repeat_count",
    "min_similar_conversation_id",
    "gen_input_configs",
)
_SPEAKER = {"user": "human", "assistant": "gpt"}


def to_sharegpt(rows: Sequence[Row]) -> list[dict]:
    """`conversation_id`, `conversations` of {from: human | gpt, value}, and every tag there is."""
    return [
        {
            "conversation_id": row["id"],
            "conversations": [
                {"from": _SPEAKER[turn["role"]], "value": turn["content"]}
                for turn in conversation(row)
            ],
        }
        | {name: row[name] for name in TAGS if name in row}
        for row in rows
    ]


def to_trl_sft(rows: Sequence[Row]) -> list[dict]:
    """trl's conversational prompt-completion format: the loss falls on the last answer alone."""
    exported = []
    for row in rows:
        turns = conversation(row)
        exported.append({"prompt": turns[:-1], "completion": turns[-1:]})
    return exported


def to_trl_dpo(rows: Sequence[Mapping[str, Any]]) -> list[dict]:
    """trl's conversational preference format with the shared prompt apart."""
    return [
        {
            "prompt": row["chosen"][:-1],
            "chosen": row["chosen"][-1:],
            "rejected": row["rejected"][-1:],
        }
        for row in rows
    ]
