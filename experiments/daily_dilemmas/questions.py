"""Where dilemmas and principles come from: written, or published."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from ritornello.common.cache import cache_root
from ritornello.common.chat import CachedClient, ChatClient, GenerationParams
from ritornello.common.errors import UserError
from ritornello.methods.daily_dilemmas import (
    Dilemma,
    Principle,
    load_daily_dilemmas,
    written_dilemmas,
    written_principles,
)
from ritornello.methods.daily_dilemmas.prompts import steering_request, system_prompt


@dataclass(frozen=True)
class Questions:
    """Dilemmas, and the principles whose conflicts among them are steered.

    `principles` takes the client that is evaluated: it may have to write the steering prompts.
    """

    dilemmas: Sequence[Dilemma]
    principles: Callable[[ChatClient], Sequence[Principle]]


def written(limit: int | None = None) -> Questions:
    """The 48 written dilemmas with eight principles, or the first `limit` of each half dozen."""
    kept = [d for d in written_dilemmas() if limit is None or (d.idx - 1) % 6 < limit]
    return Questions(kept, lambda client: written_principles())


def published(
    path_or_id: str = "kellycyy/daily_dilemmas", revision: str | None = None
) -> Questions:
    """The 1,360 dilemmas, and 16 principles with the published relevance of their values."""
    return Questions(load_daily_dilemmas(path_or_id, revision=revision), published_principles)


def published_principles(client: ChatClient) -> tuple[Principle, ...]:
    """The 16 principles of OpenAI's Model Spec; the client writes their steering prompts.

    The prompts are kept in the cache by model: every cell, worker and rerun steers with the same.

    Raises:
        UserError: a prompt is blank or was filtered: both sides would be steered alike, by nothing.
    """
    entries = published_figures()
    requests = [
        steering_request(entry[side]) for entry in entries for side in ("supporting", "opposing")
    ]
    writer = CachedClient(client, cache_root() / "daily_dilemmas" / "steering_prompts.sqlite")
    replies = writer.generate(requests, GenerationParams(max_tokens=100))
    for request, reply in zip(requests, replies, strict=True):
        if not reply.text.strip() or reply.finish_reason == "content_filter":
            raise UserError(
                f"{client.model_id} wrote no steering prompt ({reply.finish_reason}) when asked: "
                f"{request[0].text}"
            )
    prompts = [system_prompt(reply.text) for reply in replies]
    return tuple(
        Principle(
            entry["principle"],
            entry["supporting"],
            entry["opposing"],
            prompts[2 * number],
            prompts[2 * number + 1],
        )
        for number, entry in enumerate(entries)
    )


@cache
def published_figures() -> tuple[dict[str, Any], ...]:
    """GPT-4-turbo's published scores and win rates by principle, with the values' relevance."""
    file = resources.files("ritornello.experiments.daily_dilemmas").joinpath(
        "published_steering.json"
    )
    table = json.loads(file.read_text(encoding="utf-8"))
    return tuple(
        dict(zip(table["columns"], entry["figures"], strict=True))
        | {side: entry[side] for side in ("supporting", "opposing")}
        for entry in table["principles"]
    )
