"""What was answered once is not asked again: an sqlite cache around any client."""

import hashlib
import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ritornello.common.chat.journal import Journal, to_line
from ritornello.common.chat.protocol import (
    ChatClient,
    ChatError,
    Completion,
    ContinuationScores,
    GenerationParams,
    OnCompletion,
    Prompt,
    PromptLike,
    as_prompt,
)

SCHEMA_VERSION = 1
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_KEYS_PER_QUERY = 500


def generation_key(model_id: str, prompt: Prompt, params: GenerationParams) -> bytes:
    """32 bytes that differ exactly when the answer may differ.

    At temperature 0 neither seed, replicate number nor truncation matters. Where the server is,
    how long one waits and how many requests run at a time are no part of it.
    """
    return generation_keys(model_id, [prompt], params)[0]


def generation_keys(
    model_id: str, prompts: Sequence[Prompt], params: GenerationParams
) -> list[bytes]:
    """`generation_key` of many prompts under the same parameters."""
    greedy = params.temperature == 0
    if greedy:
        params = replace(params, seed=0, top_p=1.0, top_k=0)
    settings = vars(params) | {
        "temperature": float(params.temperature),
        "top_p": float(params.top_p),
        "stop": sorted(set(params.stop)),
        "stop_token_ids": sorted(set(params.stop_token_ids)),
        "banned_first_token_ids": sorted(set(params.banned_first_token_ids)),
    }
    before, after = _canonical(model_id), _canonical(settings)
    return [
        _digest(
            '"generate"', before, _canonical(p.content()), str(0 if greedy else p.sample), after
        )
        for p in prompts
    ]


def score_key(model_id: str, prompt: Prompt, continuations: Sequence[str]) -> bytes:
    """32 bytes for the scores of these continuations after this prompt."""
    content = (model_id, prompt.content(), list(continuations))
    return _digest('"score"', *map(_canonical, content))


def _digest(*content: str) -> bytes:
    """Hash of a JSON list whose members are given as canonical JSON."""
    text = f"[{SCHEMA_VERSION},{','.join(content)}]"
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


def _compress(data: bytes) -> bytes:
    # the default window is large enough to be taken from and given back to the system every time,
    # at up to 60 us; this one costs a hundredth of the size where answers are long
    compressor = zlib.compressobj(1, zlib.DEFLATED, 13, 5)
    return compressor.compress(data) + compressor.flush()


class AnswerStore:
    """One sqlite file of answers by key; safe for several processes and for sudden death.

    Args:
        path: the file; its folder is made.
    """

    def __init__(self, path: str | Path) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS answers "
            "(key BLOB PRIMARY KEY, value BLOB NOT NULL, created REAL NOT NULL) WITHOUT ROWID"
        )

    def get(self, keys: Sequence[bytes]) -> dict[bytes, dict]:
        """The stored ones of the given keys."""
        found: dict[bytes, dict] = {}
        for start in range(0, len(keys), _KEYS_PER_QUERY):
            chunk = keys[start : start + _KEYS_PER_QUERY]
            places = ",".join("?" * len(chunk))
            with self._lock:
                rows = self._db.execute(
                    f"SELECT key, value FROM answers WHERE key IN ({places})", chunk
                ).fetchall()
            found |= {key: json.loads(zlib.decompress(value)) for key, value in rows}
        return found

    def put(self, key: bytes, value: Mapping[str, object]) -> None:
        """Stores one answer, replacing an older one."""
        packed = _compress(to_line(value).encode())
        with self._lock:
            self._db.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, packed, time.time())
            )

    def __len__(self) -> int:
        with self._lock:
            return self._db.execute("SELECT COUNT(*) FROM answers").fetchone()[0]

    def close(self) -> None:
        """Closes the file."""
        self._db.close()


class CachedClient:
    """A client that remembers: known requests are answered from the store, and each new answer is
    stored the moment it arrives. A call that dies half way loses nothing but the requests in
    flight. Failed requests are not stored; refusals are.

    Args:
        client: the client that answers what is not known.
        store: the store, or the path of its file.
        journal: also appends every new answer to this log, in the order of arrival.
    """

    def __init__(
        self, client: ChatClient, store: AnswerStore | str | Path, *, journal: Journal | None = None
    ) -> None:
        self._client = client
        self._store = store if isinstance(store, AnswerStore) else AnswerStore(store)
        self._journal = journal

    @property
    def model_id(self) -> str:
        """The inner client's identity, which is part of every key."""
        return self._client.model_id

    @property
    def capabilities(self) -> frozenset[str]:
        """What the inner client understands."""
        return self._client.capabilities

    def generate(
        self,
        prompts: Sequence[PromptLike],
        params: GenerationParams,
        *,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """As `ChatClient.generate`; completions out of the store have `attempts` 0."""
        asked = [as_prompt(prompt) for prompt in prompts]
        keys = generation_keys(self.model_id, asked, params)
        stored = self._store.get(keys)
        results: dict[int, Completion] = {}
        # one place per distinct unknown request: nothing is asked twice
        unknown: dict[bytes, list[int]] = {}

        def finish(index: int, completion: Completion) -> None:
            results[index] = completion
            if on_completion is not None:
                on_completion(index, completion)

        for index, key in enumerate(keys):
            if key in stored:
                finish(index, Completion.from_json(stored[key] | {"attempts": 0}))
            else:
                unknown.setdefault(key, []).append(index)
        distinct = list(unknown.items())

        def arrived(position: int, completion: Completion) -> None:
            key, places = distinct[position]
            record = completion.to_json()
            if completion.ok:
                self._store.put(key, record)
            if self._journal is not None:
                prompt = asked[places[0]]
                self._journal.append(
                    {
                        "key": key.hex(),
                        "prompt": prompt.content(),
                        "sample": prompt.sample,
                        "completion": record,
                    }
                )
            for index in places:
                finish(index, completion)

        if distinct:
            self._client.generate(
                [asked[places[0]] for _, places in distinct], params, on_completion=arrived
            )
        return [results[index] for index in range(len(asked))]

    def score_continuations(
        self, prompts: Sequence[PromptLike], continuations: Sequence[Sequence[str]]
    ) -> list[ContinuationScores]:
        """As `ChatClient.score_continuations`, from the store where known."""
        asked = [as_prompt(prompt) for prompt in prompts]
        keys = [
            score_key(self.model_id, prompt, options)
            for prompt, options in zip(asked, continuations, strict=True)
        ]
        known: dict[bytes, dict[str, Any]] = self._store.get(keys)
        missing = {key: index for index, key in enumerate(keys) if key not in known}
        if missing:
            fresh = self._client.score_continuations(
                [asked[index] for index in missing.values()],
                [continuations[index] for index in missing.values()],
            )
            for key, computed in zip(missing, fresh, strict=True):
                known[key] = asdict(computed)
                self._store.put(key, known[key])
        return [
            ContinuationScores(tuple(map(tuple, known[key]["tokens"])), tuple(known[key]["greedy"]))
            for key in keys
        ]


class ReplayClient:
    """Stands in for a model that is not there: with `CachedClient`, only known answers are given.

    Args:
        model_id: identity of the client whose answers were stored.
    """

    capabilities = frozenset(
        {"messages", "raw_text", "prefill", "images", "seed", "logprobs", "scores"}
    )

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id

    def generate(
        self,
        prompts: Sequence[PromptLike],
        params: GenerationParams,
        *,
        on_completion: OnCompletion | None = None,
    ) -> list[Completion]:
        """Raises ChatError: whatever is asked was not stored."""
        raise ChatError(f"{len(prompts)} answers of {self.model_id} are not in the store")

    def score_continuations(
        self, prompts: Sequence[PromptLike], continuations: Sequence[Sequence[str]]
    ) -> list[ContinuationScores]:
        """Raises ChatError: whatever is asked was not stored."""
        raise ChatError(f"scores of {len(prompts)} prompts by {self.model_id} are not in the store")
